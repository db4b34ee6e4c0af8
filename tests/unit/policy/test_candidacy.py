"""When a standby looks at the lease."""

from __future__ import annotations

from narwhal.policy.intents import Peek, Rest
from tests.unit.policy.election_rig import HELD, Rig


def test_a_change_told_during_a_peek_is_looked_at_right_after_it() -> None:
    rig = Rig()
    assert rig.next(10.0) == Peek()
    rig.machine.candidacy.nudge(10.001)
    rig.answer(HELD, 10.002)  # as it was before the change
    assert rig.next() == Peek()
    rig.answer(HELD, 10.003)
    assert rig.next() == Rest(10.253)


def test_a_change_told_between_peeks_is_looked_at_at_once() -> None:
    rig = Rig()
    assert rig.next(10.0) == Peek()
    rig.answer(HELD, 10.0)
    assert rig.next(10.1) == Rest(10.25)
    rig.machine.candidacy.nudge(10.1)
    assert rig.next() == Peek()
    rig.answer(HELD, 10.101)
    assert rig.next() == Rest(10.351)
