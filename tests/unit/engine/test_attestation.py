"""Identities over the control port's memory twin: who is asked what, and what cannot be told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from narwhal.engine.attestation import EngineIdentities
from narwhal.engine.memory_control import Answering, ControlAsk, MemoryControl
from narwhal.errors import AttestationInvalid, EngineUnreachable, IdentityError
from narwhal.model.attestation import Attestation
from narwhal.model.engine import EngineSpec
from narwhal.model.identity import EngineIdentity
from narwhal.ports import EngineReply

LIVE = EngineIdentity("0.32.0", 1795979050.83)
DOCUMENT = Attestation({"vllm_version": "0.32.0"}, {"vllm_version": "pip"}, LIVE)
TIMEOUT_S = 5.0


def engine(
    *, version: int = 200, metrics: bytes = b"process_start_time_seconds 1.79597905083e+09\n"
) -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        if ask.path == "/version":
            return EngineReply(version, {}, b'{"version":"0.32.0"}')
        return EngineReply(200, {}, metrics)

    return answer


def sidecar(status: int = 200, body: bytes = json.dumps(DOCUMENT.document()).encode()) -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        assert ask.path == ""
        assert "authorization" not in ask.headers
        return EngineReply(status, {}, body)

    return answer


def told(
    scene: Callable[[EngineIdentities], Awaitable[object]], *, beside: Answering, live: Answering
) -> object:
    async def main() -> object:
        spec = EngineSpec("e0", "http://e0", attestation_url="http://e0:8010/v1/attestation")
        control = MemoryControl({"e0": live}, connections=1, api_key="opens")
        sidecars = MemoryControl({"e0": beside}, connections=1)
        return await scene(EngineIdentities([spec], control, sidecars=sidecars))

    return asyncio.run(main())


async def attested(identities: EngineIdentities) -> Attestation:
    return await identities.attestation("e0", timeout_s=TIMEOUT_S)


async def identified(identities: EngineIdentities) -> EngineIdentity:
    return await identities.identity("e0", timeout_s=TIMEOUT_S)


def test_the_engine_tells_version_and_start_and_the_sidecar_its_document() -> None:
    assert told(identified, beside=sidecar(), live=engine()) == LIVE
    assert told(attested, beside=sidecar(), live=engine()) == DOCUMENT


def test_an_engine_that_does_not_tell_has_no_identity() -> None:
    with pytest.raises(IdentityError, match="/version answers 404"):
        told(identified, beside=sidecar(), live=engine(version=404))
    with pytest.raises(IdentityError, match="no process_start_time_seconds"):
        told(identified, beside=sidecar(), live=engine(metrics=b""))


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b'{"error": {"message": "the engine is gone"}}', "the sidecar answers 503: the engine is gone"),
        (503, b"oops", r"the sidecar answers 503$"),
        (503, b'{"error": {"message": "two\\nlines"}}', r"the sidecar answers 503$"),
        (200, b"{}", "schema must be"),
    ],
)
def test_a_sidecar_that_does_not_vouch_is_told_with_its_reason(status: int, body: bytes, said: str) -> None:
    with pytest.raises(AttestationInvalid, match=said):
        told(attested, beside=sidecar(status, body), live=engine())


def test_a_sidecar_that_is_away_is_an_engine_error() -> None:
    async def away(ask: ControlAsk) -> EngineReply:
        raise ConnectionResetError

    with pytest.raises(EngineUnreachable):
        told(attested, beside=away, live=engine())
