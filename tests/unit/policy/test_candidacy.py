"""When a standby looks at the lease, and when it may take it."""

from __future__ import annotations

from dataclasses import replace

from narwhal.model.lease import LeaseState, LeaseVersion, LeaseView
from narwhal.policy.intents import Acquire, Peek, Rest
from tests.unit.policy.election_rig import HELD, RELEASED, Rig


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


def given_away(at: float) -> tuple[Rig, LeaseView]:
    """A machine that yielded, and its record as it left it."""
    rig = Rig()
    token = rig.to_owner(at - 1.0)
    rig.machine.drain(token)
    rig.machine.release("yield", now=at)
    rig.next(at)
    rig.answer(True, at)
    return rig, replace(RELEASED, epoch=rig.machine.candidacy.known, version=LeaseVersion("own", 9))


def test_who_gave_the_lease_away_competes_again_when_another_has_owned_since() -> None:
    rig, own = given_away(11.0)
    assert isinstance(rig.see(own, 11.01), Rest)
    later = replace(own, epoch=own.epoch + 1, version=LeaseVersion("theirs", 1))
    rig.machine.candidacy.nudge(11.1)
    assert isinstance(rig.see(replace(later, state=LeaseState.HELD, owner="r1"), 11.1), Rest)
    rig.machine.candidacy.nudge(11.2)
    assert isinstance(rig.see(later, 11.2), Acquire)


def test_a_pause_for_another_cause_is_not_cut_short() -> None:
    rig, own = given_away(11.0)
    later = replace(own, epoch=own.epoch + 1, version=LeaseVersion("theirs", 1))
    rig.machine.candidacy.unconfirmed(11.0)
    assert isinstance(rig.see(later, 11.01), Rest)
