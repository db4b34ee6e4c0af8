"""Who is told of a higher epoch swaps its own record at sight, while nobody else can have owned since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.lease import LeaseVersion, LeaseView, NewServer, Reinstated, Renewed
from narwhal.policy.intents import Acquire, Intent, Peek, Rest
from tests.unit.policy.election_rig import HELD, INC, OTHER_INC, Rig

EPOCH = 8


def superseded(rig: Rig, now: float = 10.1) -> LeaseView:
    """An owner since 10.0, so with D = 14.0, is told of epoch 50: its own record."""
    token = rig.to_owner(10.0, EPOCH)
    rig.machine.supersede(token, 50, why="e0 knows epoch 50", now=now)
    return replace(HELD, version=LeaseVersion(token, 0), epoch=EPOCH, owner="r0")


def silent_until(rig: Rig, until: float) -> None:
    """No peek is answered."""
    while rig.now < until:
        intent = rig.next()
        if isinstance(intent, Rest):
            rig.now = intent.until
        else:
            rig.answer(None, rig.now + 0.05)


def at_sight(rig: Rig, view: LeaseView) -> Intent:
    """What follows the next peek when it shows `view`."""
    while isinstance(intent := rig.next(), Rest):
        rig.now = intent.until
    assert intent == Peek()
    rig.answer(view)
    return rig.next()


def acquired_at(rig: Rig, view: LeaseView) -> float:
    """When an acquire is sent if every peek shows `view`."""
    while not isinstance(intent := at_sight(rig, view), Acquire):
        assert isinstance(intent, Rest)
        rig.now = intent.until
    assert intent.expected == view.version
    return rig.now


def test_the_own_record_is_swapped_at_sight_before_the_old_deadline() -> None:
    rig = Rig()
    assert isinstance(at_sight(rig, superseded(rig)), Acquire)


def test_a_silence_that_ends_before_the_old_deadline_changes_nothing() -> None:
    rig = Rig()
    own = superseded(rig)
    silent_until(rig, 13.0)
    assert isinstance(at_sight(rig, own), Acquire)
    assert rig.now < 14.0


@pytest.mark.parametrize("until", [13.9, 100.0])
def test_from_the_old_deadline_on_the_own_record_is_watched_like_any_other(until: float) -> None:
    """Somebody else may have owned in between, and the store may have gone back in time."""
    rig = Rig()
    own = superseded(rig)
    silent_until(rig, until)
    first = max(rig.now, 14.0)
    rig.now = first
    assert acquired_at(rig, own) >= first + 5.0


def test_a_renewal_moves_the_deadline_that_counts() -> None:
    rig = Rig()
    token = rig.to_owner(10.0, EPOCH)
    rig.renewal(11.0)
    rig.answer(Renewed(f"{INC}/{token}:0", {}))
    rig.machine.supersede(token, 50, why="e0 knows epoch 50", now=11.1)
    silent_until(rig, 14.5)
    assert isinstance(at_sight(rig, replace(HELD, version=LeaseVersion(token, 1), epoch=EPOCH)), Acquire)


def test_under_another_incarnation_the_own_record_is_watched() -> None:
    """A server that is new to us may show what was before somebody else owned."""
    rig = Rig()
    own = superseded(rig)
    assert acquired_at(rig, replace(own, inc=OTHER_INC)) >= 10.1 + 5.0


def test_one_sight_of_another_incarnation_ends_it_for_good() -> None:
    rig = Rig()
    own = superseded(rig)
    assert isinstance(at_sight(rig, replace(own, inc=OTHER_INC)), Rest)
    assert acquired_at(rig, own) >= 10.1 + 5.0


def test_the_incarnation_that_counts_is_that_of_the_last_confirmed_reply() -> None:
    rig = Rig()
    token = rig.to_owner(10.0, EPOCH)
    rig.renewal(11.0)
    rig.answer(Reinstated(f"{OTHER_INC}/{token}:1"))
    rig.machine.supersede(token, 50, why="e0 knows epoch 50", now=11.1)
    own = replace(HELD, version=LeaseVersion(token, 1), epoch=EPOCH)
    assert isinstance(at_sight(rig, replace(own, inc=OTHER_INC)), Acquire)


def test_a_refused_swap_keeps_the_bounds() -> None:
    rig = Rig()
    own = superseded(rig)
    assert isinstance(at_sight(rig, own), Acquire)
    rig.answer(NewServer(str(OTHER_INC)))
    assert acquired_at(rig, replace(own, inc=OTHER_INC)) >= 10.1 + 5.0
