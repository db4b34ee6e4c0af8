"""A thousand slow streams at once through one router."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.crowd import Viewer, all_over, view
from tests.support.engines import engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import ask, play

STREAMS = 1000
TOKENS = 20
MEMORY_BYTES = 60 << 20


async def watch_ready(router: Router, statuses: list[int]) -> None:
    while True:
        statuses.append((await ask(router.url, "/ready")).status)
        await asyncio.sleep(0.05)


async def thousand(router: Router, peak: list[int]) -> tuple[list[Viewer], list[int]]:
    statuses: list[int] = []
    viewers: list[Viewer] = []
    async with asyncio.TaskGroup() as group:
        ready = group.create_task(watch_ready(router, statuses))
        for index in range(STREAMS):
            body = {"prompt": f"stream {index}", "max_tokens": TOKENS, "stream": True}
            viewers.append(await view(router.url, body))
            if index % 20 == 0:
                await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)
        peak.append(router.memory_bytes())
        await all_over(viewers)
        ready.cancel()
    return viewers, statuses


def test_a_thousand_streams_complete_in_flat_memory_while_ready_answers(tmp_path: Path) -> None:
    with engine_process(4, "--prefill", "0", "--interval", "0.2") as engines:
        fleet = fleet_document(engines.engines, serving={"max_connections": 1500})
        with router_process(tmp_path, fleet) as router:
            idle, peak = router.memory_bytes(), list[int]()
            viewers, statuses = play(thousand(router, peak), within_s=120.0)
            assert [viewer for viewer in viewers if not viewer.complete] == []
            assert {viewer.tokens for viewer in viewers} == {TOKENS}
            assert set(statuses) == {200}
            assert peak[0] - idle <= MEMORY_BYTES
            router.becomes_idle()
            engines.becomes_idle()
            assert router.state()["served"] == STREAMS
