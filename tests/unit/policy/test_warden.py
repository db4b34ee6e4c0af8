"""policy/warden.py: stalls, signals, and when a token needs no more releasing."""

from __future__ import annotations

from math import inf

import pytest

from narwhal.model.lease import Lost
from narwhal.model.legacy import ToldToken
from narwhal.policy.warden import CUT_S, STALL_TICKS, TICK_S, Ending, Meaning, StallCount, needs_no_more


class Watch:
    """A warden's ticks over a router's beats."""

    def __init__(self, beats: int = 1) -> None:
        self.count = StallCount()
        self.now = 1000.0
        self.beats = beats
        self.count.tick(self.now, beats)

    def ticks(self, number: int, *, every_s: float = TICK_S, beating: bool = False) -> list[bool]:
        seen = []
        for _ in range(number):
            self.now += every_s
            self.beats += beating
            seen.append(self.count.tick(self.now, self.beats))
        return seen


def test_eight_ticks_without_a_beat_are_a_stall_and_not_one_earlier() -> None:
    assert Watch().ticks(STALL_TICKS) == [False] * (STALL_TICKS - 1) + [True]


def test_a_beating_loop_never_stalls() -> None:
    assert not any(Watch().ticks(1000, beating=True))


def test_one_beat_starts_the_count_anew() -> None:
    watch = Watch()
    watch.ticks(STALL_TICKS - 1)
    assert watch.ticks(1, beating=True) == [False]
    assert watch.ticks(STALL_TICKS) == [False] * (STALL_TICKS - 1) + [True]


def test_a_stall_goes_on_until_a_beat() -> None:
    watch = Watch()
    watch.ticks(STALL_TICKS)
    assert watch.ticks(4) == [True] * 4
    assert watch.ticks(1, beating=True) == [False]


@pytest.mark.parametrize("gap_s", [0.51, 2.0, 3600.0])
def test_a_gap_between_own_ticks_starts_the_count_anew(gap_s: float) -> None:
    """A sleeping host, or a warden and router stopped together, is no stall of the router."""
    watch = Watch()
    watch.ticks(STALL_TICKS - 1)
    assert watch.ticks(1, every_s=gap_s) == [False]
    assert watch.ticks(STALL_TICKS) == [False] * (STALL_TICKS - 1) + [True]


def test_ticks_that_are_a_little_late_still_count() -> None:
    assert Watch().ticks(STALL_TICKS, every_s=0.49)[-1]


def test_nothing_stalls_before_the_loop_begins_and_after_it_ended() -> None:
    watch = Watch(beats=0)
    assert not any(watch.ticks(100))
    watch = Watch()
    watch.ticks(STALL_TICKS)
    watch.beats = 0
    assert not any(watch.ticks(100))


def test_a_beat_after_the_last_tick_is_seen() -> None:
    watch = Watch()
    watch.ticks(STALL_TICKS)
    assert not watch.count.alive(watch.beats)
    assert watch.count.alive(watch.beats + 1)


# --- signals ---


def test_many_signals_within_a_second_are_one() -> None:
    ending = Ending()
    assert not ending.asked
    assert ending.signalled(10.0) is Meaning.PASS_ON
    assert [ending.signalled(at) for at in (10.0, 10.4, 11.0)] == [Meaning.NOTHING] * 3
    assert (ending.asked, ending.cut, ending.kill_at) == (True, False, inf)


def test_a_second_one_later_ends_at_once_and_a_third_adds_nothing() -> None:
    ending = Ending()
    ending.signalled(10.0)
    assert ending.signalled(11.01) is Meaning.CUT
    assert ending.signalled(20.0) is Meaning.NOTHING
    assert (ending.cut, ending.kill_at) == (True, 11.01 + CUT_S)


# --- releases ---

TOLD = ToldToken("t1", floor=100)


@pytest.mark.parametrize(
    ("reply", "over"),
    [
        (True, True),
        (Lost("held", 101, "b"), True),
        (Lost("released", 101, "b"), True),
        (Lost("held", 100, "b"), False),
        (Lost("held", 99, "b"), False),
        (Lost("vacant", 0, ""), False),
        (Lost("", 0, ""), False),
    ],
)
def test_a_release_is_repeated_while_its_acquire_may_still_land(reply: bool | Lost, over: bool) -> None:
    assert needs_no_more(TOLD, reply) is over
