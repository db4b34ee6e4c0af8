"""The places of a router and the line before them: in order, bounded, everyone ends once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from narwhal.errors import InvariantViolation
from narwhal.policy.waiting_line import Standing, Ticket, WaitingLine


def full(limit: int = 1, capacity: int = 3) -> WaitingLine[Ticket]:
    """All places taken, nobody waits."""
    line: WaitingLine[Ticket] = WaitingLine(limit=limit, capacity=capacity)
    while line.take():
        pass
    return line


def joined(line: WaitingLine[Ticket], until: float = 10.0) -> Ticket:
    ticket = Ticket(0.0, until)
    assert line.join(ticket)
    return ticket


def test_a_free_place_is_taken_at_once():
    line: WaitingLine[Ticket] = WaitingLine(limit=2, capacity=1)
    assert [line.take(), line.take(), line.take()] == [True, True, False]


def test_without_capacity_nobody_joins():
    assert not full(capacity=0).join(Ticket(0.0, 1.0))


def test_the_line_is_bounded():
    line = full(capacity=2)
    joined(line), joined(line)
    turned_away = Ticket(0.0, 1.0)
    assert not line.join(turned_away)
    assert turned_away.standing is Standing.OUT


def test_a_place_that_comes_back_goes_to_the_first_alone():
    line = full()
    first, second = joined(line), joined(line)
    assert line.give() is first
    assert (first.standing, second.standing) == (Standing.PLACED, Standing.WAITING)
    assert line.take() is False
    line.check_invariants()


def test_a_place_that_nobody_waits_for_is_free():
    line = full()
    assert line.give() is None
    assert line.take()


def test_who_leaves_the_line_frees_the_place_in_it_and_the_others_move_up():
    line = full(capacity=2)
    first, second = joined(line), joined(line)
    assert line.leave(first) is None
    assert line.waiting == 1
    joined(line)
    assert line.give() is second


def test_who_leaves_a_place_passes_it_on():
    line = full()
    first, second = joined(line), joined(line)
    line.give()
    assert line.leave(first) is second
    assert line.leave(first) is None, "once"
    assert second.standing is Standing.PLACED


def test_whose_time_is_over_leaves_and_nobody_else():
    line = full()
    early, late = joined(line, 5.0), joined(line, 6.0)
    assert line.expire(4.999) == []
    assert line.expire(5.0) == [early]
    assert (early.standing, late.standing) == (Standing.OUT, Standing.WAITING)
    assert line.leave(early) is None, "it holds nothing any more"


def test_the_line_is_emptied_from_its_front():
    line = full()
    first, second = joined(line), joined(line)
    assert [line.drop_first(), line.drop_first(), line.drop_first()] == [first, second, None]
    assert line.waiting == 0
    assert line.taken == 1


def test_the_high_water_mark_stays():
    line = full()
    first, _ = joined(line), joined(line)
    line.leave(first)
    line.drop_first()
    assert (line.waiting, line.high_water) == (0, 2)


@pytest.mark.parametrize(("taken", "limit"), [(-1, 1), (2, 1)])
def test_places_that_do_not_add_up_are_a_bug(taken, limit):
    line: WaitingLine[Ticket] = WaitingLine(limit=limit, capacity=0)
    line.taken = taken
    with pytest.raises(InvariantViolation):
        line.check_invariants()


def test_a_line_before_a_free_place_is_a_bug():
    line = full()
    joined(line)
    line.taken = 0
    with pytest.raises(InvariantViolation):
        line.check_invariants()


class LineMachine(RuleBasedStateMachine):
    """Beside the line a plain list of who waits, and a count of who has a place."""

    def __init__(self) -> None:
        super().__init__()
        self.line: WaitingLine[Ticket] = WaitingLine(limit=2, capacity=3)
        self.now = 0.0
        self.at_once = 0
        self.waiting: list[Ticket] = []
        self.placed: list[Ticket] = []
        self.out: list[Ticket] = []
        self.seen = 0

    def took(self, ticket: Ticket | None) -> None:
        """A place came back; only the first in line may have it."""
        if ticket is not None:
            assert ticket is self.waiting.pop(0)
            self.placed.append(ticket)

    @rule(patience=st.floats(0.0, 3.0))
    def arrive(self, patience: float) -> None:
        if self.line.take():
            self.at_once += 1
            return
        ticket = Ticket(self.now, self.now + patience)
        if self.line.join(ticket):
            self.waiting.append(ticket)
            self.seen = max(self.seen, len(self.waiting))
        else:
            assert len(self.waiting) == 3

    @precondition(lambda self: self.at_once)
    @rule()
    def end_at_once(self) -> None:
        self.at_once -= 1
        self.took(self.line.give())

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def end_placed(self, data: st.DataObject) -> None:
        ticket = self.placed.pop(data.draw(st.integers(0, len(self.placed) - 1)))
        self.out.append(ticket)
        self.took(self.line.leave(ticket))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        ticket = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.out.append(ticket)
        assert self.line.leave(ticket) is None

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        assert self.line.leave(data.draw(st.sampled_from(self.out))) is None

    @rule(seconds=st.floats(0.0, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        over = [ticket for ticket in self.waiting if ticket.until <= self.now]
        assert self.line.expire(self.now) == over
        self.waiting = [ticket for ticket in self.waiting if ticket not in over]
        self.out += over

    @rule()
    def empty(self) -> None:
        while (ticket := self.line.drop_first()) is not None:
            assert ticket is self.waiting.pop(0)
            self.out.append(ticket)
        assert not self.waiting

    @invariant()
    def it_adds_up(self) -> None:
        self.line.check_invariants()
        assert self.line.taken == self.at_once + len(self.placed)
        assert self.line.waiting == len(self.waiting) <= 3
        assert self.line.high_water == self.seen
        for standing, tickets in (
            (Standing.WAITING, self.waiting),
            (Standing.PLACED, self.placed),
            (Standing.OUT, self.out),
        ):
            assert all(ticket.standing is standing for ticket in tickets)


TestLine = LineMachine.TestCase
TestLine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
