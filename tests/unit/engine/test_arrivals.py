"""engine/arrivals.py: how old an answer may be, told by a loop that may have stood still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from narwhal.engine.arrivals import TICK_S, Arrivals


@dataclass(eq=False)
class Asked:
    callback: Callable[..., None]
    args: tuple[Any, ...]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        if not self.cancelled:
            self.callback(*self.args)


@dataclass
class TurningLoop:
    """A loop whose timers and turns a test makes, and the clock that it is told by."""

    now: float = 1000.0
    timer: Asked | None = None
    soon: list[Asked] = field(default_factory=list)

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Asked:
        assert delay == TICK_S
        assert self.timer is None
        self.timer = Asked(callback, args)
        return self.timer

    def call_soon(self, callback: Callable[..., None], *args: Any) -> Asked:
        self.soon.append(Asked(callback, args))
        return self.soon[-1]

    def fire(self) -> None:
        timer, self.timer = self.timer, None
        assert timer is not None
        timer.run()

    def turn(self) -> None:
        """One way through the sockets."""
        ready, self.soon = self.soon, []
        for one in ready:
            one.run()

    def tick(self) -> None:
        """As a loop does that runs."""
        self.now += TICK_S
        self.fire()
        self.turn()
        self.turn()


def made() -> tuple[TurningLoop, Arrivals]:
    loop = TurningLoop()
    return loop, Arrivals(cast(Any, loop), lambda: loop.now)


def test_an_answer_is_no_older_than_its_question() -> None:
    loop, arrivals = made()
    sent_at = arrivals.begin()
    loop.now += 40.0
    assert arrivals.not_before(sent_at) == 1000.0, "nothing else is known"


def test_what_a_running_loop_reads_came_since_it_last_looked() -> None:
    loop, arrivals = made()
    sent_at = arrivals.begin()
    for _ in range(400):
        loop.tick()
    looked_at = loop.now
    loop.now += 0.09
    assert arrivals.not_before(sent_at) == looked_at
    assert arrivals.not_before(looked_at + 0.05) == looked_at + 0.05, "sent since"


def test_what_is_read_after_a_standstill_may_have_come_at_its_begin() -> None:
    loop, arrivals = made()
    sent_at = arrivals.begin()
    loop.tick()
    before = loop.now
    loop.now += 40.0
    assert arrivals.not_before(sent_at) == before, "the sockets come before the timer"
    loop.fire()
    assert arrivals.not_before(sent_at) == before, "the timer comes before the sockets"
    loop.turn()
    assert arrivals.not_before(sent_at) == before, "what the sockets had may not have been handed on"
    loop.turn()
    assert arrivals.not_before(sent_at) == before + 40.0, "it has, and there was nothing"


def test_standstills_in_a_row_with_no_way_through_the_sockets_between_are_one() -> None:
    loop, arrivals = made()
    sent_at = arrivals.begin()
    loop.tick()
    before = loop.now
    loop.now += 10.0
    loop.fire()
    loop.now += 10.0
    loop.turn()
    loop.now += 10.0
    assert arrivals.not_before(sent_at) == before
    loop.turn()
    assert arrivals.not_before(sent_at) == before + 10.0, "nothing was there when the timer fired"


def test_a_standstill_before_is_over_once_the_loop_has_looked() -> None:
    loop, arrivals = made()
    sent_at = arrivals.begin()
    loop.now += 40.0
    for _ in range(20):
        loop.tick()
    assert arrivals.not_before(sent_at) == loop.now, "nothing came in it"


def test_nothing_ticks_while_no_call_is_open() -> None:
    loop, arrivals = made()
    assert loop.timer is None
    arrivals.begin()
    arrivals.begin()
    arrivals.end()
    timer = loop.timer
    assert timer is not None
    assert not timer.cancelled
    arrivals.end()
    assert timer.cancelled


def test_a_call_that_ends_while_the_loop_looks_leaves_nothing_behind() -> None:
    for turns in (0, 1):
        loop, arrivals = made()
        arrivals.begin()
        loop.fire()
        for _ in range(turns):
            loop.turn()
        arrivals.end()
        loop.turn()
        loop.turn()
        assert (loop.timer, loop.soon) == (None, [])
        loop.now += 40.0
        sent_at = arrivals.begin()
        assert arrivals.not_before(sent_at) == sent_at == 1040.0
        loop.tick()
        assert arrivals.not_before(sent_at) == 1040.0 + TICK_S
