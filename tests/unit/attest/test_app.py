"""The sidecar's answers over a look that a test steers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from narwhal.attest.app import AttestationApp
from narwhal.attest.binding import Binding
from narwhal.errors import IdentityError
from narwhal.model.attestation import read_attestation
from narwhal.model.identity import EngineIdentity

A = EngineIdentity("0.32.0", 100.5)
B = EngineIdentity("0.32.0", 200.5)
CONTRACT = {"vllm_version": "0.32.0", "kv_heads": 8}
SOURCES = dict.fromkeys(CONTRACT, "the test")


class Looks:
    """What is seen, look after look; the last one for ever. An exception is raised."""

    def __init__(self, *seen: EngineIdentity | IdentityError) -> None:
        self._seen = list(seen)

    async def __call__(self) -> EngineIdentity:
        seen = self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]
        if isinstance(seen, IdentityError):
            raise seen
        return seen


def app(looks: Looks, *, rebind: bool = False) -> AttestationApp:
    return AttestationApp(Binding("0.32.0", rebind=rebind), looks, contract=CONTRACT, sources=SOURCES)


async def asked(application: AttestationApp, path: str, method: str = "GET") -> tuple[int, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await application({"type": "http", "path": path, "method": method}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def answers(application: AttestationApp, *paths: str) -> Sequence[tuple[int, Any]]:
    async def main() -> Sequence[tuple[int, Any]]:
        await application.bind()
        return [await asked(application, path) for path in paths]

    return asyncio.run(main())


def test_every_route_while_the_process_lives() -> None:
    document, health, elsewhere = answers(app(Looks(A)), "/v1/attestation", "/health", "/x")
    assert read_attestation(json.dumps(document[1]).encode()).identity == A
    assert health == (200, {"status": "ok"})
    assert elsewhere[0] == 404


def test_only_reading_is_allowed() -> None:
    assert asyncio.run(asked(app(Looks(A)), "/v1/attestation", "POST"))[0] == 405


def test_every_route_is_503_once_the_process_is_another() -> None:
    for status, body in answers(app(Looks(A, B)), "/v1/attestation", "/health", "/x"):
        assert status == 503
        assert "restart this sidecar" in body["error"]["message"]


def test_a_look_that_fails_is_one_503() -> None:
    told = answers(app(Looks(A, IdentityError("no answer"), A)), "/v1/attestation", "/v1/attestation")
    assert [status for status, _ in told] == [503, 200]
    assert told[0][1]["error"]["message"] == "no answer"


def test_rebind_serves_the_next_process() -> None:
    ((status, document),) = answers(app(Looks(A, B), rebind=True), "/v1/attestation")
    assert (status, document["engine"]["process_start_time_seconds"]) == (200, B.process_start)


def test_a_process_of_another_version_is_not_bound() -> None:
    with pytest.raises(IdentityError, match=r"runs vLLM 0\.31\.0, the document is about 0\.32\.0"):
        asyncio.run(app(Looks(EngineIdentity("0.31.0", 1.0))).bind())


def test_an_older_look_never_takes_the_binding_back() -> None:
    """Two requests at once: the one whose look began first must not end last."""
    order: list[str] = []

    async def main() -> None:
        first = asyncio.Event()

        async def look() -> EngineIdentity:
            order.append("begins")
            if order.count("begins") == 1:
                await first.wait()
                seen = A
            else:
                seen = B
            order.append(seen.words)
            return seen

        application = AttestationApp(Binding("0.32.0", rebind=True), look, contract=CONTRACT, sources=SOURCES)
        older = asyncio.create_task(asked(application, "/v1/attestation"))
        await asyncio.sleep(0)
        newer = asyncio.create_task(asked(application, "/v1/attestation"))
        await asyncio.sleep(0)
        first.set()
        starts = [(await task)[1]["engine"]["process_start_time_seconds"] for task in (older, newer)]
        assert starts == [A.process_start, B.process_start]

    asyncio.run(main())
    assert order == ["begins", A.words, "begins", B.words]
