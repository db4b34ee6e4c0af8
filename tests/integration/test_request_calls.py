"""What one request costs in Python calls of ours, from the client's socket to both engines' and back.

Counted, not timed: what a request costs is the code it touches. Raise a bound only with a reason for each.
A good leg of a sound engine has a bound of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from types import FrameType
from typing import Any

import pytest
import uvloop

from narwhal.cluster.local import LocalGate
from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.model.evidence import LegSucceeded
from narwhal.monitor.judge import Judge
from narwhal.policy.fleet import Fleet
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.engines import engine_process
from tests.support.processes import LIVENESS_S
from tests.support.serving import Rig, RouterOptions, router
from tests.support.settings import MODEL, engine_settings, fleet_config
from tests.support.ticking import TickingClock

CALLS_A_REQUEST = 356
"""Streamed, one token, two legs, nobody in trouble: 340 to 350, by how the packets come. Nine of them look at
the types of the events that are decoded, six date the answer of the prefill."""
CALLS_A_GOOD_LEG = {Leg.PREFILL: 3, Leg.DECODE: 4}
"""The judge, the look-up, and what is noted of its process or of the edge that it crossed."""
REQUESTS = 41


def count(found: Counter[str]) -> Callable[[FrameType, str, Any], None]:
    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and str(frame.f_globals.get("__name__")).startswith("narwhal."):
            found[f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"] += 1

    return profile


def ask(client: HTTPConnection) -> None:
    body = json.dumps({"prompt": "Tell me of the sea", "stream": True, "max_tokens": 1})
    client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    answer = client.getresponse()
    assert answer.status == 200
    assert answer.read().endswith(b"data: [DONE]\n\n")


async def usual_request(rig: Rig) -> Counter[str]:
    """The cheapest of some that a client makes one after the other. What comes on top is not the request's:
    an answer that was read in more pieces, a new connection, a pass of the monitor. On a busy machine most
    requests have some of it, so a median would count the machine."""
    counts: list[Counter[str]] = []
    client = HTTPConnection("127.0.0.1", rig.port, timeout=LIVENESS_S)
    for _ in range(REQUESTS):
        found: Counter[str] = Counter()
        sys.setprofile(count(found))
        try:
            await asyncio.to_thread(ask, client)
        finally:
            sys.setprofile(None)
        counts.append(found)
    client.close()
    return min(counts, key=Counter.total)


def test_a_request_is_a_bounded_number_of_calls() -> None:
    async def main(engines: list[EngineSpec]) -> Counter[str]:
        config = fleet_config(*engines, engine=engine_settings(tokenize=False))
        async with router(config, RouterOptions(judged=True)) as rig:
            return await usual_request(rig)

    with engine_process(4, "--model", MODEL, "--prefill", "0", "--interval", "0") as site:
        roles = (Role.PREFILL, Role.DECODE) * 2
        specs = [EngineSpec(e.name, e.url, role=role) for e, role in zip(site.engines, roles, strict=True)]
        found = uvloop.run(main(specs))
    assert found.total() <= CALLS_A_REQUEST, found.most_common()


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
def test_a_good_leg_of_a_sound_engine_is_a_look_up(leg: Leg) -> None:
    specs = (EngineSpec("p0", "http://p0", Role.PREFILL), EngineSpec("d0", "http://d0", Role.DECODE))
    clock, recorder = TickingClock(), MemoryRecorder()
    judge = Judge(
        Fleet(fleet_config(*specs), {}),
        gate=LocalGate(),
        recorder=recorder,
        metrics=RouterMetrics(),
        clock=clock,
    )
    good = LegSucceeded("p0", leg, "", "one") if leg is Leg.PREFILL else LegSucceeded("d0", leg, "p0", "")
    judge.report(good)
    found: Counter[str] = Counter()
    sys.setprofile(count(found))
    try:
        judge.report(good)
    finally:
        sys.setprofile(None)
    assert found.total() <= CALLS_A_GOOD_LEG[leg], found
    assert not recorder.rows
