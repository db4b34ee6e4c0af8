"""What a monitor pass costs in Python calls: bounded by engine, and no faster growth than the fleet's.

Counted, not timed. The budget in milliseconds is measured by `make bench MODES=monitor`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from narwhal.model.decoding import DecodeSeen
from narwhal.model.engine import EngineSpec, Role
from tests.support.own_router import Own
from tests.support.settings import controller_settings

CALLS_AN_ENGINE = 60
"""Of a whole pass's decisions and gauges, the worst of its kind: every drift window ends over the band."""


def calls(work: Callable[[], object]) -> int:
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def router(engines: int) -> Own:
    """Every engine has a healthy baseline and a window that is over the band and may be closed."""
    specs = [
        EngineSpec(f"e{index:03}", f"http://e{index}", Role.PREFILL if index % 2 else Role.DECODE)
        for index in range(engines)
    ]
    own = Own(*specs, controller=controller_settings())
    for interval_s in (0.02, 0.2):
        for _ in range(3):
            roll(own, interval_s)
            own.clock.now_s += 10.0
        if interval_s == 0.02:
            own.fleet.pacing.close(own.clock.now())
    return own


def roll(own: Own, interval_s: float) -> None:
    seen = [
        DecodeSeen(iid, interval_s + index / 1e6, 1.0, 100.0) for index, iid in enumerate(own.fleet.engines)
    ]
    own.fleet.pacing.roll(seen, own.clock.now())


def one_pass(own: Own) -> None:
    now = own.clock.now()
    own.fleet.control(now)
    own.fleet.pacing.close(now)
    roll(own, 0.2)
    own.fleet.tick(now)
    own.views.sample(now, 0.0)
    own.fleet.export(now)


def cost(engines: int) -> int:
    own = router(engines)
    return calls(lambda: one_pass(own))


def test_a_pass_takes_a_bounded_number_of_calls_an_engine() -> None:
    assert cost(200) <= 200 * CALLS_AN_ENGINE


def test_a_fleet_of_twice_the_size_takes_no_more_than_twice_the_calls() -> None:
    assert cost(400) <= 2.1 * cost(200)


def test_an_idle_pass_takes_a_fraction_of_that() -> None:
    engines = 200
    own = router(engines)
    one_pass(own)
    now = own.clock.now()
    idle = calls(lambda: (own.fleet.control(now), own.fleet.pacing.close(now), own.fleet.tick(now)))
    assert idle <= 10 * engines
