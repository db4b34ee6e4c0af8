"""A sidecar beside an engine that speaks https, with the CAs that SSL_CERT_FILE names."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from narwhal.attest.look import EngineLook
from narwhal.errors import IdentityError
from narwhal.model.identity import EngineIdentity
from tests.support.processes import LIVENESS_S
from tests.support.scripted import Line, answer, scripted_engine
from tests.support.wire import play

TLS = Path(__file__).resolve().parents[1] / "support" / "tls"
METRICS = b"process_start_time_seconds 1795979050.83\n"


async def script(line: Line) -> None:
    head, _ = await line.request()
    body = b'{"version":"0.32.0"}' if "/version" in head else METRICS
    await line.say(answer(200, body))


def server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    return context


async def looked() -> tuple[EngineIdentity, int]:
    async with scripted_engine(script, tls=server()) as engine:
        async with EngineLook(engine.spec.url, timeout_s=LIVENESS_S) as look:
            return await look.identity(), len(engine.lines)


def test_the_engines_certificate_is_checked_against_the_named_authorities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "cert.pem"))
    seen, connections = play(looked())
    assert seen == EngineIdentity("0.32.0", 1795979050.83)
    # An idle connection could be closed under the next request: each question has one of its own.
    assert connections == 2


def test_a_certificate_that_nobody_vouches_for_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    with pytest.raises(IdentityError, match="the engine gives no answer"):
        play(looked())
