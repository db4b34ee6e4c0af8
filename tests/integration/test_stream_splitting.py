"""However the engine cuts its bytes into packets, the client gets exactly them (less an unasked usage)."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import RemoteEngine, call, engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import ask, play

PROMPT = "naïve 海"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 3, "stream": True},
    CHAT: {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 3,
        "stream": True,
        "return_token_ids": True,
    },
}
AT_ONCE = 16
HUGE = 2 << 20


@dataclass(frozen=True, slots=True)
class Site:
    router: Router
    consumer: RemoteEngine

    def order(self, faults: Sequence[dict[str, object]]) -> None:
        call("POST", f"{self.consumer.side_url}/sim/faults", {"faults": list(faults)})


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with engine_process(2, "--prefill", "0", "--interval", "0") as engines:
        fleet = fleet_document(engines.engines, engine={"tokenize": False})
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield Site(router, engines.engines[1])


@pytest.fixture
def site(standing: Site) -> Iterator[Site]:
    standing.consumer.reset()
    yield standing
    standing.consumer.reset()


def same_identity(body: bytes) -> bytes:
    """The stream without what differs from request to request."""
    return re.sub(rb'"created":\s*\d+', b'"created":0', re.sub(rb'cmpl-[^"]*"', b'cmpl-"', body))


def without_usage(body: bytes, end: bytes) -> bytes:
    """The engine's bytes less its usage event (with a blank line that stands right before it)."""
    (event,) = [piece for piece in body.split(end + end) if b'"prompt_tokens"' in piece]
    return body.replace(event + end + end, b"")


async def engines_bytes(
    site: Site, end: bytes, *, path: str = COMPLETIONS, **fields: Any
) -> tuple[bytes, int]:
    """What the router must send for these faults, and how many bytes the engine sends for it."""
    asked = {**BODIES[path], "stream_options": {"include_usage": True}, **fields}
    direct = await ask(site.consumer.url, path, body=asked, x_narwhal_leg="decode")
    return without_usage(same_identity(direct.body), end), len(direct.body)


async def ask_all(
    site: Site, count: int, *, path: str = COMPLETIONS, at_once: int = AT_ONCE, **fields: Any
) -> list[bytes]:
    """Bodies of that many streams through the router."""
    seats = asyncio.Semaphore(at_once)

    async def one() -> bytes:
        async with seats:
            answer = await ask(site.router.url, path, body={**BODIES[path], **fields})
            return same_identity(answer.body)

    return await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize(
    ("path", "framing", "end"),
    [
        (COMPLETIONS, [], b"\n"),
        (COMPLETIONS, ["crlf"], b"\r\n"),
        (COMPLETIONS, ["cr"], b"\r"),
        (COMPLETIONS, ["comments", "multi_line"], b"\n"),
        (COMPLETIONS, ["crlf", "comments", "multi_line"], b"\r\n"),
        (CHAT, [], b"\n"),
    ],
    ids=["LF", "CRLF", "CR", "LF, comments, many lines", "CRLF, comments, many lines", "chat"],
)
def test_a_cut_at_any_byte_changes_nothing(site: Site, path: str, framing: Sequence[str], end: bytes) -> None:
    async def scene() -> None:
        site.order([{"fault": fault, "leg": "decode"} for fault in framing])
        expected, length = await engines_bytes(site, end, path=path)
        offsets = range(1, length)
        site.order([{"fault": "split", "at": at, "leg": "decode", "count": 1} for at in offsets])
        bodies = await ask_all(site, len(offsets), path=path)
        assert sum(body != expected for body in bodies) == 0

    play(scene(), within_s=120.0)


def test_huge_events_cut_anywhere_arrive_whole(site: Site) -> None:
    async def scene() -> None:
        site.order([{"fault": "huge", "bytes": HUGE, "leg": "decode"}])
        expected, length = await engines_bytes(site, b"\n", max_tokens=1)
        dice = random.Random(7)
        offsets = [dice.randrange(1, length) for _ in range(200)]
        site.order([{"fault": "split", "at": at, "leg": "decode", "count": 1} for at in offsets])
        for _ in range(0, len(offsets), 8):
            bodies = await ask_all(site, 8, at_once=8, max_tokens=1)
            assert sum(body != expected for body in bodies) == 0

    play(scene(), within_s=120.0)
