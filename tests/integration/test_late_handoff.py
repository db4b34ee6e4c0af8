"""A router that stood still while a prefill's answer lay in its socket sends no decode after the KV lease."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from narwhal.sim.text import answer_text, text_prompt
from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, ask, play

PREFILL_S = 2.0
"""Of the first one: long enough to stop the router in it."""
LEASE_S = 3.0
BOUND_S = 2.5
PROMPT = "how deep does a narwhal dive under the ice of the long winter? " * 8
WHOLE = {"prompt": PROMPT, "max_tokens": 12, "stream": False}


def fleet_of(engines: EngineProcess, **serving: Any) -> dict[str, Any]:
    return fleet_document(
        engines.engines,
        serving={"prefill_timeout_s": 60.0, "handoff_timeout_s": BOUND_S, **serving},
        engine={"tokenize": False},
        controller={"monitor_interval_s": 0.2},
        recovery={"liveness_every": 0},
    )


def legs(engines: EngineProcess, leg: str) -> int:
    return sum(int(engine.stats()["legs"].get(leg, 0)) for engine in engines.engines)


def expired(engines: EngineProcess) -> int:
    return sum(int(engine.stats()["expired"]) for engine in engines.engines)


def asked_through_a_standstill(router: Router, engines: EngineProcess, *, times: int) -> Answer:
    """The router is stopped in the prefill until the lease of its KV is over; `times` in a row, with a moment
    between that is short or none."""

    async def asked() -> Answer:
        task = asyncio.create_task(ask(router.url, "/v1/completions", body=WHOLE))
        await asyncio.to_thread(eventually, lambda: legs(engines, "prefill") == 1)
        os.kill(router.pid, signal.SIGSTOP)
        try:
            await asyncio.to_thread(eventually, lambda: expired(engines) == 1)
            for _ in range(times - 1):
                os.kill(router.pid, signal.SIGCONT)
                os.kill(router.pid, signal.SIGSTOP)
                await asyncio.sleep(0.2)
        finally:
            os.kill(router.pid, signal.SIGCONT)
        return await task

    return play(asked(), within_s=120.0)


@pytest.mark.parametrize("times", [1, 5])
def test_the_decode_follows_a_fresh_prefill(tmp_path: Path, times: int) -> None:
    with engine_process(2, "--interval", "0.01", "--kv-lease", str(LEASE_S)) as engines:
        engines.engines[0].order("slow", leg="prefill", seconds=PREFILL_S, count=1)
        with router_process(tmp_path, fleet_of(engines, max_attempts=3)) as router:
            answer = asked_through_a_standstill(router, engines, times=times)
            assert answer.status == 200
            text = json.loads(answer.body)["choices"][0]["text"]
            assert text == answer_text(text_prompt(PROMPT).seed, 12)
            assert legs(engines, "prefill") >= 2
            assert legs(engines, "decode") == 1, "that of the first was never sent"
            state, row = router.state(), router.journalled(answer.headers["x-request-id"])
            assert {(one["class"], one["kind"]) for one in row["attempt_failures"]} == {
                ("none", "HandoffExpired")
            }
            assert (state["served"], state["failed"], state["offered"]) == (1, 0, 1)
            assert (state["breaker"]["failures"], state["ejected"], state["holds"]) == ({}, [], {})


def test_without_another_attempt_the_client_is_told(tmp_path: Path) -> None:
    with engine_process(2, "--interval", "0.01", "--kv-lease", str(LEASE_S)) as engines:
        engines.engines[0].order("slow", leg="prefill", seconds=PREFILL_S, count=1)
        with router_process(tmp_path, fleet_of(engines)) as router:
            answer = asked_through_a_standstill(router, engines, times=1)
            assert (answer.status, answer.error["code"]) == (504, "handoff_expired")
            assert legs(engines, "decode") == 0
            assert router.state()["breaker"]["failures"] == {}
