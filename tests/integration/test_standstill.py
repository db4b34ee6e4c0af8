"""A router that stands still for a while blames no engine for it, and loses no request by it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.support.crowd import view
from tests.support.engines import engine_process
from tests.support.router import fleet_document, router_process
from tests.support.wire import play

STILL_S = 1.4
LIMIT_S = 1.0
"""Of everything that is asked of an engine: less than the standstill."""


async def through_a_standstill(url: str, pid: int, *, delay_s: float) -> int:
    """Eight streams, and the router stopped `delay_s` after their start; how many were whole."""
    bodies = [{"prompt": f"{delay_s} {n}", "max_tokens": 4, "stream": True} for n in range(8)]
    viewers = [await view(url, body) for body in bodies]
    await asyncio.sleep(delay_s)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STILL_S)  # noqa: ASYNC251 - nobody else is on this loop
    finally:
        os.kill(pid, signal.SIGCONT)
    async with asyncio.timeout(30.0):
        await asyncio.gather(*(viewer.over for viewer in viewers))
    return sum(viewer.complete for viewer in viewers)


def test_a_standstill_ends_no_leg_and_counts_against_nobody(tmp_path: Path) -> None:
    """Legs of a quarter second are met in their prefill, between the legs and before their first token."""
    limits = {
        "first_token_timeout_s": LIMIT_S,
        "connect_timeout_s": LIMIT_S,
        "health_timeout_s": LIMIT_S,
        "decode_read_timeout_s": LIMIT_S,
        "pool_timeout_s": LIMIT_S,
        "tokenize_timeout_s": LIMIT_S,
    }
    with engine_process(4, "--prefill", "0.25", "--interval", "0.01") as engines:
        fleet = fleet_document(
            engines.engines,
            engine=limits,
            serving={"prefill_timeout_s": LIMIT_S},
            controller={"monitor_interval_s": 0.2},
            recovery={"eject_after": 1, "liveness_every": 1, "liveness_misses": 1},
        )
        with router_process(tmp_path, fleet) as router:
            for delay_s in (0.02, 0.15, 0.3, 0.45, 0.6):
                assert play(through_a_standstill(router.url, router.pid, delay_s=delay_s), within_s=60.0) == 8
            state = router.state()
            assert (state["served"], state["failed"], state["offered"]) == (40, 0, 40)
            assert state["breaker"]["failures"] == {}
            assert (state["ejected"], state["holds"]) == ([], {})
            assert "Traceback" not in router.process.output, router.process.output
