"""A client that reads slowly slows its engine down, not the router's memory up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import EngineProcess, engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Wire, ask, play

EVENT = 1 << 20
TOKENS = 48
KEPT_BYTES = 24 << 20
"""Less than half of what the stream would put into the router's memory."""


@dataclass(frozen=True, slots=True)
class Site:
    router: Router
    engines: EngineProcess

    def frames(self) -> int:
        return int(self.engines.engines[1].stats()["frames"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with engine_process(2, "--prefill", "0", "--interval", "0.001") as engines:
        # Silence is judged by what the engine could have sent: a paused stream is not silent.
        fleet = fleet_document(engines.engines, engine={"decode_read_timeout_s": 1.5})
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield Site(router, engines)


@pytest.fixture(autouse=True)
def huge_events(site: Site) -> Iterator[None]:
    consumer = site.engines.engines[1]
    consumer.reset()
    consumer.order("huge", bytes=EVENT, leg="decode")
    yield
    consumer.reset()
    site.router.becomes_idle()
    site.engines.becomes_idle()


async def begun(site: Site) -> Wire:
    """A stream of which the client has read the head only."""
    wire = await Wire.open(site.router.url)
    transport = wire.writer.transport
    await wire.request("POST", "/v1/completions", body={"prompt": "x", "max_tokens": TOKENS, "stream": True})
    answer = await wire.head()
    assert answer.status == 200
    transport.pause_reading()  # type: ignore[attr-defined]
    return wire


def test_an_unread_stream_stops_its_engine_and_goes_on_when_it_is_read(site: Site) -> None:
    async def scene() -> None:
        idle = site.router.memory_bytes()
        wire = await begun(site)
        await asyncio.sleep(2.0)
        held = await asyncio.to_thread(site.frames)
        assert held < TOKENS, "the engine waits"
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(site.frames) == held
        assert site.router.memory_bytes() - idle < KEPT_BYTES
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await wire.everything_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")).count(b'"text":') == TOKENS
        wire.close()

    play(scene(), within_s=60.0)


def test_an_unread_stream_does_not_slow_others(site: Site) -> None:
    async def scene() -> None:
        wire = await begun(site)
        for _ in range(5):
            answer = await ask(site.router.url, "/v1/completions", body={"prompt": "y", "max_tokens": 1})
            assert answer.status == 200
        assert (await ask(site.router.url, "/ready")).status == 200
        wire.close()

    play(scene(), within_s=60.0)


def test_a_client_that_leaves_an_unread_stream_frees_the_engine(site: Site) -> None:
    async def scene() -> None:
        wire = await begun(site)
        await asyncio.sleep(0.5)
        wire.close()

    play(scene(), within_s=60.0)
    site.router.becomes_idle()
    site.engines.becomes_idle()
    assert site.engines.engines[1].stats()["aborted"] == 1
