"""engine/wheel.py: late by a tick at most, never early, and no work for what is not due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

import pytest

from narwhal.engine.arrivals import Arrivals
from narwhal.engine.exchange import Fetch
from narwhal.engine.wheel import StoodStill, Wheel, prolonged
from narwhal.errors import EngineTimeout
from narwhal.model.engine import Leg
from narwhal.ports import EngineCall

TICK = 0.05


@dataclass
class ManualLoop:
    """The calls of a loop that the wheel makes, with time moved by hand."""

    now: float = 100.0
    timer: tuple[float, Callable[[], None]] | None = None
    turns: int = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        self.timer = (when, callback)
        return self

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        return self.call_at(self.now + delay, callback)

    def cancel(self) -> None:
        self.timer = None

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timer is not None and self.timer[0] <= end:
            when, callback = self.timer
            self.timer = None
            self.now = max(self.now, when)
            self.turns += 1
            callback()
        self.now = end


@dataclass(eq=False)
class Thing:
    """Answers `again` times with another `every` seconds."""

    every: float = 0.0
    again: int = 0
    bucket: int | None = None
    seen: list[float] = field(default_factory=list)
    then: Callable[[], None] | None = None

    def look(self, now: float, stood_still_s: StoodStill) -> float | None:
        self.seen.append(now)
        if self.then is not None:
            self.then()
        if self.again == 0:
            return None
        self.again -= 1
        return now + self.every


def make() -> tuple[ManualLoop, Wheel]:
    loop = ManualLoop()
    return loop, Wheel(cast(asyncio.AbstractEventLoop, loop), TICK)


def test_a_thing_is_asked_once_when_due_and_not_before() -> None:
    loop, wheel = make()
    thing = Thing()
    wheel.watch(thing, 102.5)
    loop.advance(2.49)
    assert thing.seen == []
    loop.advance(0.2)
    assert len(thing.seen) == 1
    assert 102.5 <= thing.seen[0] <= 102.5 + 2 * TICK
    loop.advance(10)
    assert len(thing.seen) == 1


def test_it_is_asked_again_when_it_says() -> None:
    loop, wheel = make()
    thing = Thing(every=1.0, again=3)
    wheel.watch(thing, 101.0)
    loop.advance(10)
    assert len(thing.seen) == 4
    assert all(later - earlier >= 1.0 for earlier, later in zip(thing.seen, thing.seen[1:], strict=False))


def test_nobody_is_woken_before_something_is_due() -> None:
    loop, wheel = make()
    far, near = Thing(), Thing()
    wheel.watch(far, 160.0)
    loop.advance(30)
    assert loop.turns == 0
    wheel.watch(near, 131.0)
    loop.advance(2)
    assert (len(near.seen), len(far.seen)) == (1, 0)
    assert 131.0 <= near.seen[0] <= 131.0 + 2 * TICK
    loop.advance(30)
    assert len(far.seen) == 1
    assert loop.turns == 2


def test_what_was_dropped_is_not_asked() -> None:
    loop, wheel = make()
    thing = Thing()
    wheel.watch(thing, 101.0)
    wheel.drop(thing)
    wheel.drop(thing)
    loop.advance(5)
    assert thing.seen == []
    assert len(wheel) == 0


def test_a_second_watch_replaces_the_first() -> None:
    loop, wheel = make()
    thing = Thing()
    wheel.watch(thing, 101.0)
    wheel.watch(thing, 103.0)
    loop.advance(2)
    assert thing.seen == []
    loop.advance(2)
    assert len(thing.seen) == 1


def test_a_due_time_in_the_past_is_asked_at_the_next_tick() -> None:
    loop, wheel = make()
    thing = Thing()
    wheel.watch(thing, 3.0)
    loop.advance(2 * TICK)
    assert len(thing.seen) == 1


def test_the_timer_rests_when_nothing_is_watched() -> None:
    loop, wheel = make()
    wheel.watch(Thing(), 100.2)
    loop.advance(1)
    turns = loop.turns
    loop.advance(60)
    assert loop.turns == turns
    assert loop.timer is None


def test_a_late_turn_of_the_loop_skips_nobody() -> None:
    loop, wheel = make()
    things = [Thing() for _ in range(50)]
    for index, thing in enumerate(things):
        wheel.watch(thing, 100.0 + index * 0.03)
    loop.now += 30
    loop.advance(2 * TICK)
    assert all(len(thing.seen) == 1 for thing in things)


def test_after_a_standstill_nobody_is_asked_before_the_sockets_had_their_turn() -> None:
    loop, wheel = make()
    thing = Thing()
    wheel.watch(thing, 101.0)
    loop.now = 102.4
    loop.advance(TICK / 2)
    assert (loop.turns, thing.seen) == (1, []), "the turn that was late only comes again"
    loop.advance(TICK)
    assert thing.seen == [102.4 + TICK]


def test_a_loop_that_is_always_late_still_asks() -> None:
    loop, wheel = make()
    thing = Thing()
    wheel.watch(thing, 101.0)
    for _ in range(2):
        loop.now += 5.0
        loop.advance(0.0)
    assert len(thing.seen) == 1


def test_one_that_is_asked_may_drop_or_watch_others() -> None:
    loop, wheel = make()
    first, second, late = Thing(), Thing(), Thing()

    def act() -> None:
        wheel.drop(second)
        wheel.watch(late, loop.now)

    first.then = act
    wheel.watch(second, 102.0)
    wheel.watch(first, 101.0)
    loop.advance(5)
    assert (len(first.seen), len(second.seen), len(late.seen)) == (1, 0, 1)


def test_closing_forgets_everything() -> None:
    loop, wheel = make()
    thing = Thing()
    wheel.watch(thing, 101.0)
    wheel.close()
    loop.advance(5)
    assert thing.seen == []
    assert thing.bucket is None


# --- our own standstills ---


def test_a_limit_is_prolonged_by_what_the_loop_missed_since_it_began() -> None:
    asked: list[float] = []

    def missed(within_s: float) -> float:
        asked.append(within_s)
        return 0.4

    assert prolonged(100.0, 2.0, now=99.9, stood_still_s=missed) == 100.0
    assert asked == [], "asked only when it may be up"
    assert prolonged(100.0, 2.0, now=100.5, stood_still_s=missed) == 100.4
    assert asked == [2.5]


async def fetch_at(now_s: float, *, missed_s: float, spare_s: float = inf) -> bool:
    """Is a fetch of one second at its end so long after its begin."""
    call = EngineCall("e0", "GET", "/health", Leg.PROBE, "rid", total_s=1.0, spare_s=spare_s)
    loop = asyncio.get_running_loop()
    fetch = Fetch(call, loop, limit=100, arrivals=Arrivals(loop, loop.time))
    assert fetch.total_due is not None
    again = fetch.look(fetch.total_due - 1.0 + now_s, lambda within_s: missed_s)
    assert (again is None) is fetch.done.done()
    if again is None:
        with pytest.raises(EngineTimeout):
            fetch.done.result()
    return again is None


@pytest.mark.parametrize(
    ("now_s", "missed_s", "spare_s", "over"),
    [
        (1.0, 0.0, inf, True),
        (1.3, 0.4, inf, False),
        (1.5, 0.4, inf, True),
        (9.0, 8.5, inf, False),
        (1.2, 0.4, 0.1, True),
        (1.05, 0.4, 0.1, False),
        (1.0, 0.4, 0.0, True),
    ],
)
def test_a_call_has_its_whole_time_and_never_more_than_its_spare(
    now_s: float, missed_s: float, spare_s: float, over: bool
) -> None:
    assert asyncio.run(fetch_at(now_s, missed_s=missed_s, spare_s=spare_s)) is over
