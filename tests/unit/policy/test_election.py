"""The lease machine, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from narwhal.errors import InvariantViolation
from narwhal.model.control import RouterState
from narwhal.model.leadership import Remembered
from narwhal.model.lease import (
    Acquired,
    BadFloor,
    HeldBy,
    LeaseState,
    LeaseVersion,
    LeaseView,
    Lost,
    NewServer,
    NothingStored,
    Reinstated,
    Renewed,
    Stale,
)
from narwhal.policy.intents import (
    Acquire,
    Alarm,
    Claim,
    Extended,
    Fenced,
    Granted,
    Peek,
    Release,
    Released,
    Reply,
    Rest,
    Stop,
)
from tests.unit.policy.election_rig import EMPTY, HELD, INC, LIFE, OTHER_INC, RELEASED, Rig

S = RouterState


# --- standing by -----------------------------------------------------------------------------------


def test_a_held_lease_is_taken_only_after_a_whole_watch() -> None:
    rig = Rig()
    assert rig.see(HELD, 0.0) == Rest(0.25)
    for step in range(1, 20):
        assert rig.see(HELD, step * 0.25) == Rest((step + 1) * 0.25)
    intent = rig.see(HELD, 5.0)
    assert isinstance(intent, Acquire)
    assert (intent.expected, intent.inc, intent.floor) == (LeaseVersion("x", 4), str(INC), 7)
    assert rig.machine.phase is S.ACQUIRING


def test_a_renewed_lease_is_never_taken() -> None:
    rig = Rig()
    for step in range(100):
        seen = replace(HELD, version=LeaseVersion("x", step // 4))
        assert rig.see(seen, step * 0.25) == Rest((step + 1) * 0.25)


def test_an_acquire_goes_out_only_on_a_fresh_sight() -> None:
    rig = Rig()
    rig.see(HELD, 0.0)
    assert rig.next(4.9) == Peek()
    rig.answer(None)
    assert rig.next(5.2) == Peek()


def test_nothing_stored_is_never_acquired_but_marked_and_watched() -> None:
    rig = Rig(Remembered(epoch_floor=41, ttl_ms_max=6000))
    claim = rig.see(EMPTY, 0.0)
    assert isinstance(claim, Claim)
    assert (claim.floor, claim.ttl_ms) == (41, 6000)
    rig.answer(True)
    marker = LeaseView(
        INC, "master", LeaseState.VACANT, LeaseVersion(claim.nonce, 0), epoch_key=41, ttl_ms=6000
    )
    assert rig.see(marker, 0.0) == Rest(0.25)
    for step in range(1, 24):
        assert isinstance(rig.see(marker, step * 0.25), Rest)
    intent = rig.see(marker, 6.0)
    assert isinstance(intent, Acquire)
    assert intent.floor == 41


def test_each_marker_has_a_nonce_of_its_own() -> None:
    rig = Rig()
    first = rig.see(EMPTY, 0.0)
    rig.answer(None)
    second = rig.see(EMPTY, 0.0)
    assert isinstance(first, Claim) and isinstance(second, Claim)
    assert first.nonce != second.nonce


def test_a_marker_beside_an_epoch_key_that_forgot_is_told_the_floor() -> None:
    rig = Rig(Remembered(epoch_floor=41))
    marker = LeaseView(INC, "master", LeaseState.VACANT, LeaseVersion("n", 0), epoch_key=3, ttl_ms=5000)
    claim = rig.see(marker, 0.0)
    assert isinstance(claim, Claim) and claim.floor == 41


def test_every_epoch_ever_seen_is_a_floor() -> None:
    rig = Rig()
    rig.see(replace(HELD, epoch=90), 0.0)
    rig.see(replace(HELD, epoch_key=120, version=LeaseVersion("y", 0)), 0.25)
    assert rig.to_acquire(0.5).floor == 120


@pytest.mark.parametrize("blocked", [{"may_compete": False}, {"main_alive": False}])
def test_who_may_not_compete_only_watches(blocked: dict[str, object]) -> None:
    rig = Rig()
    rig.inputs = blocked
    assert isinstance(rig.see(RELEASED, 0.0), Rest)
    assert rig.machine.phase is S.STANDBY


def test_start_retries_with_growing_pauses_for_ever() -> None:
    rig = Rig()
    now, pauses = 0.0, []
    for _ in range(6):
        assert rig.next(now) == Peek()
        rig.answer(None)
        until = rig.rest()
        pauses.append(until - now)
        now = until
        assert rig.machine.phase is S.STARTING
    assert pauses == [0.125, 0.25, 0.5, 1.0, 1.0, 1.0]


# --- whose turn --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successor", "inputs", "delay"),
    [
        ("", {}, 0.0),
        ("", {"rank": 2}, 0.1),
        ("", {"ready_to_take": False}, 1.0),
        ("r0", {"rank": 2, "ready_to_take": False}, 0.0),
        ("r9", {}, 0.15),
        ("r9", {"rank": 1}, 0.2),
    ],
)
def test_order_among_standbys(successor: str, inputs: dict[str, object], delay: float) -> None:
    rig = Rig()
    rig.inputs = inputs
    seen = replace(RELEASED, successor=successor)
    intent = rig.see(seen, 10.0)
    if delay == 0.0:
        assert isinstance(intent, Acquire)
        return
    assert rig.machine.phase is S.CANDIDATE
    while isinstance(intent, Rest):
        assert intent.until <= 10.0 + delay + 1e-9
        intent = rig.see(seen, intent.until)
    assert isinstance(intent, Acquire)
    assert rig.now == pytest.approx(10.0 + delay)


def test_the_preferred_successor_is_awaited_once_from_our_sight_of_the_release() -> None:
    rig = Rig()
    seen = replace(RELEASED, successor="r2")
    assert isinstance(rig.see(seen, 10.0), Rest)
    token = rig.see(seen, 10.15)
    assert isinstance(token, Acquire)
    rig.answer(None, 10.9)
    rig.machine.gave_up(11.0)
    assert isinstance(rig.next(11.0), Release)
    rig.answer(True, 11.0)
    assert isinstance(rig.see(seen, 11.6), Acquire), "it had its 150 ms"


def test_a_release_that_had_to_be_watched_is_not_awaited_again_when_it_is_ripe() -> None:
    rig = Rig()
    seen = replace(RELEASED, successor="r2", sure=False)
    rig.see(seen, 10.0)
    for now in (12.5, 14.99):
        assert isinstance(rig.see(seen, now), Rest)
    assert isinstance(rig.see(seen, 15.25), Acquire)


def test_a_standby_by_preference_lets_others_be_first_for_30_s() -> None:
    rig = Rig(prefer_standby=True)
    marker = LeaseView(INC, "master", LeaseState.VACANT, LeaseVersion("n", 0), ttl_ms=5000)
    for step in range(120):
        assert isinstance(rig.see(marker, step * 0.25), Rest)
    assert isinstance(rig.see(marker, 30.0), Acquire)


@pytest.mark.parametrize("saw_owner", [True, False])
def test_a_standby_by_preference_takes_over_once_there_was_an_owner(saw_owner: bool) -> None:
    rig = Rig(Remembered(saw_owner=saw_owner), prefer_standby=True)
    if not saw_owner:
        rig.see(HELD, 0.0)
    assert isinstance(rig.see(RELEASED, 1.0), Acquire)


# --- acquiring ---------------------------------------------------------------------------------------


def test_the_deadline_counts_from_before_the_send() -> None:
    rig = Rig()
    token = rig.to_acquire(10.0).token
    assert rig.answer(Acquired(8, "life"), 10.7) == (Granted(token, 8, 14.0),)
    assert rig.machine.phase is S.RESTORING


def test_after_again_the_deadline_counts_from_the_first_send() -> None:
    rig = Rig()
    token = rig.to_acquire(10.0).token
    rig.answer(None, 10.8)
    again = rig.machine.again(11.05, main_alive=True)
    assert isinstance(again, Acquire) and again.token == token
    assert rig.answer(Acquired(8, "life", again=True), 11.2) == (Granted(token, 8, 14.0),)


def test_a_second_attempt_that_was_the_one_counts_from_its_own_send() -> None:
    rig = Rig()
    token = rig.to_acquire(10.0).token
    rig.answer(None, 10.8)
    rig.machine.again(11.05, main_alive=True)
    assert rig.answer(Acquired(8, "life"), 11.2) == (Granted(token, 8, 15.05),)


def test_a_grant_read_at_or_after_its_deadline_is_given_back() -> None:
    rig = Rig()
    token = rig.to_acquire(10.0).token
    assert rig.answer(Acquired(8, "life"), 14.0) == ()
    assert rig.next() == Release(token, "confirmed too late")
    rig.answer(True)
    assert rig.machine.phase is S.STANDBY


def test_an_unconfirmed_acquire_is_released_and_tried_again_after_doubling_pauses() -> None:
    rig = Rig()
    now, pauses = 10.0, []
    for _ in range(5):
        token = rig.to_acquire(now).token
        rig.answer(None, now + 0.8)
        rig.machine.gave_up(rig.now)
        assert rig.next() == Release(token, "unconfirmed")
        rig.answer(None, rig.now + 0.8)
        rig.machine.gave_up(rig.now)
        released = rig.now
        while not isinstance(intent := rig.see(RELEASED, rig.rest_until()), Acquire):
            assert isinstance(intent, Rest)
        pauses.append(rig.now - released)
        rig.answer(HeldBy("r1", 7))
        now = rig.now + 1
    assert pauses == pytest.approx([0.5, 1.0, 2.0, 4.0, 5.0])


def test_attempts_of_an_acquire_end_before_its_deadline() -> None:
    rig = Rig()
    rig.to_acquire(10.0)
    assert rig.machine.tenure is not None
    assert rig.machine.tenure.retry_until == pytest.approx(13.9)


@pytest.mark.parametrize("reply", [HeldBy("r1", 30), NewServer(str(OTHER_INC)), NothingStored()])
def test_a_refused_acquire_begins_a_new_watch(reply: Reply) -> None:
    rig = Rig()
    rig.to_acquire(10.0)
    assert rig.answer(reply) == ()
    assert rig.machine.phase is S.STANDBY
    assert rig.machine.candidacy.watch.ripe_at is None
    assert rig.machine.candidacy.known == (30 if isinstance(reply, HeldBy) else 7)


def test_a_floor_that_the_store_refuses_is_alarmed() -> None:
    rig = Rig()
    rig.to_acquire(10.0)
    (alarm,) = rig.answer(BadFloor())
    assert isinstance(alarm, Alarm)


def test_an_epoch_not_above_the_floor_is_not_served() -> None:
    rig = Rig()
    token = rig.to_acquire(10.0).token
    (alarm,) = rig.answer(Acquired(7, "life"))
    assert isinstance(alarm, Alarm)
    assert rig.next() == Release(token, "epoch not above the floor")


# --- holding -----------------------------------------------------------------------------------------


def test_owner_only_after_the_first_fenced_write() -> None:
    rig = Rig()
    token = rig.to_restoring()
    rig.machine.opened("another token")
    assert rig.machine.phase is S.RESTORING
    rig.machine.opened(token)
    assert rig.machine.phase is S.OWNER


def test_renewals_go_out_every_interval_and_move_the_deadline() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    assert rig.rest() == 11.0
    renewal = rig.renewal(11.0)
    assert (renewal.epoch, renewal.seq, renewal.life) == (8, 1, LIFE)
    assert rig.answer(Renewed(LIFE, {}), 11.3) == (Extended(token, 15.0),)
    assert rig.rest() == 12.0


def test_every_attempt_of_a_renewal_has_a_higher_seq() -> None:
    rig = Rig()
    rig.to_owner(10.0)
    seqs = [rig.renewal(11.0).seq]
    for now in (11.8, 12.8):
        rig.answer(None, now)
        again = rig.machine.again(now + 0.25, main_alive=True)
        seqs.append(again.seq)  # type: ignore[union-attr]
    rig.answer(Stale(), 13.2)
    again = rig.machine.again(13.45, main_alive=True)
    seqs.append(again.seq)  # type: ignore[union-attr]
    assert seqs == sorted(set(seqs))


def test_an_unanswered_renewal_makes_suspect_and_the_next_answer_clears_it() -> None:
    rig = Rig()
    rig.to_owner(10.0)
    rig.renewal(11.0)
    rig.answer(None, 11.8)
    assert rig.machine.phase is S.SUSPECT
    rig.machine.again(12.05, main_alive=True)
    rig.answer(Renewed(LIFE, {}), 12.1)
    assert rig.machine.phase is S.OWNER


def test_stale_is_no_answer() -> None:
    rig = Rig()
    rig.to_owner(10.0)
    rig.renewal(11.0)
    assert rig.answer(Stale()) == ()
    assert rig.machine.tenure is not None
    assert rig.machine.tenure.deadline == 14.0
    assert rig.machine.phase is S.SUSPECT


def test_a_renewal_passes_the_life_of_the_last_confirmed_reply() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.renewal(11.0)
    assert rig.answer(Reinstated("life-1")) == (Extended(token, 15.0, reinstated=True),)
    assert rig.renewal(12.0).life == "life-1"


def test_a_reply_at_or_after_the_deadline_is_discarded() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.renewal(11.0)
    assert rig.answer(Renewed("life-9", {}), 14.0) == (Fenced(token, "lease deadline passed"),)
    assert rig.machine.phase is S.FENCED


def test_the_deadline_fences_and_releases_and_stands_by() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    assert rig.machine.tick(13.999) == ()
    assert rig.machine.tick(14.0) == (Fenced(token, "lease deadline passed"),)
    assert rig.next(14.0) == Release(token, "lease deadline passed")
    rig.answer(True)
    assert rig.next() == Peek()
    assert rig.machine.phase is S.STANDBY


def test_no_attempt_starts_in_the_last_tenth_of_a_second() -> None:
    rig = Rig()
    rig.to_owner(10.0)
    assert rig.rest(13.9) == 14.0
    assert rig.machine.again(13.95, main_alive=True) is None


def test_a_silent_main_loop_is_not_renewed_for() -> None:
    rig = Rig()
    rig.to_owner(10.0)
    rig.inputs = {"main_alive": False}
    assert rig.rest(11.0) == pytest.approx(11.1)
    assert rig.machine.again(11.1, main_alive=False) is None
    rig.inputs = {}
    assert rig.renewal(11.1).seq == 1


def test_lost_is_final_at_once() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.renewal(11.0)
    (fenced,) = rig.answer(Lost("held", 12, "r1"))
    assert fenced == Fenced(token, "lease lost to r1 at epoch 12")
    assert rig.machine.candidacy.known == 12
    assert rig.next() == Peek()


def test_a_fenced_token_is_never_used_again() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    assert rig.machine.fence(token, "an engine refused the epoch") != ()
    assert rig.machine.fence(token, "twice") == ()
    rig.next()
    rig.answer(True)
    assert rig.to_acquire(20.0).token != token
    rig.machine.opened(token)
    assert rig.machine.phase is S.ACQUIRING


def test_a_reply_to_a_token_that_was_fenced_meanwhile_changes_nothing() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.renewal(11.0)
    rig.machine.fence(token, "an engine refused the epoch")
    assert rig.answer(Renewed(LIFE, {}), 11.1) == ()
    assert rig.machine.phase is S.FENCED
    assert rig.next() == Release(token, "an engine refused the epoch")


def test_a_handed_in_token_must_be_new() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.fence(token, "x")
    rig.next()
    rig.answer(True)
    rig.next(20.0)
    rig.answer(RELEASED)
    inputs = replace(rig.last_inputs, token=token)
    with pytest.raises(InvariantViolation):
        rig.machine.next(20.0, inputs)


# --- a higher epoch in the store ---------------------------------------------------------------------


def test_a_higher_stored_epoch_is_acquired_above_with_a_new_token_by_swapping_the_own_version() -> None:
    rig = Rig()
    token = rig.to_restoring(10.0, epoch=8)
    effects = rig.machine.supersede(token, 50, why="the engine e0 knows epoch 50", now=10.1)
    assert effects == (Fenced(token, "the engine e0 knows epoch 50"),)
    own = replace(HELD, version=LeaseVersion(token, 1), epoch=8)
    intent = rig.see(own, 10.1)
    assert isinstance(intent, Acquire)
    assert intent.token != token
    assert (intent.expected, intent.floor) == (LeaseVersion(token, 1), 50)


def test_a_version_that_is_not_the_own_one_is_watched_after_all() -> None:
    rig = Rig()
    token = rig.to_restoring(10.0, epoch=8)
    rig.machine.supersede(token, 50, why="x", now=10.1)
    assert isinstance(rig.see(HELD, 10.1), Rest)


def test_a_higher_epoch_is_learned_also_by_who_holds_nothing_any_more() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.fence(token, "x")
    assert rig.machine.supersede(token, 50, why="x", now=10.1) == ()
    assert rig.machine.candidacy.known == 50


def test_who_is_overruled_again_and_again_waits_longer_each_time_and_alarms() -> None:
    """Two clusters of one name on different stores would chase each other for ever, and at full speed."""
    rig, pauses, alarms, epoch = Rig(), [], [], 8
    token = rig.to_owner(10.0, epoch=epoch)
    for _ in range(6):
        overruled_at, floor = rig.now, epoch + 10
        effects = rig.machine.supersede(token, floor, why="e0 knows more", now=rig.now)
        assert effects[0] == Fenced(token, "e0 knows more")
        alarms.append(any(isinstance(effect, Alarm) for effect in effects))
        token, epoch = rig.swap(replace(HELD, version=LeaseVersion(token, 1), epoch=epoch)), floor + 1
        pauses.append(round(rig.now - overruled_at, 3))
        rig.grant(epoch)
        rig.machine.opened(token)
    # From D on, 4 s after the send, the own record is watched for T like any other.
    assert pauses == [0.0, 0.5, 1.0, 2.0, 5.0, 5.0]
    assert alarms == [False, True, True, True, True, True]
    assert rig.machine.supersede(token, epoch + 1, why="x", now=rig.now + 61.0) == (Fenced(token, "x"),)


# --- the end -----------------------------------------------------------------------------------------


def test_a_yield_drains_releases_and_lets_the_others_go_first_for_a_second() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.drain(token)
    assert rig.renewal(11.0).seq == 1
    rig.answer(Renewed(LIFE, {}))
    rig.machine.release("yield", successor="r2", now=11.1)
    assert rig.next(11.1) == Release(token, "yield", "r2")
    assert rig.answer(True, 11.2) == (Released(token, True),)
    assert rig.machine.phase is S.RELEASED
    intent = rig.see(replace(RELEASED, successor=""), 11.2)
    while isinstance(intent, Rest):
        intent = rig.see(RELEASED, intent.until)
    assert rig.now >= 12.2


def test_a_release_awaits_the_renewal_in_flight() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.renewal(11.0)
    rig.machine.drain(token)
    rig.machine.release("yield", now=11.0)
    rig.answer(Renewed(LIFE, {}), 11.1)
    assert rig.next() == Release(token, "yield")


def test_a_release_is_repeated_for_one_ttl_and_then_let_be() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.drain(token)
    rig.machine.release("yield", now=11.0)
    rig.next(11.0)
    rig.answer(None, 11.8)
    assert rig.machine.tenure is not None
    assert rig.machine.tenure.retry_until == 16.0
    assert rig.machine.again(12.05, main_alive=False) == Release(token, "yield")
    rig.answer(None, 16.0)
    assert rig.machine.gave_up(16.0) == (Released(token, False),)


def test_stopping_gives_the_lease_back_first() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.stop(now=10.5)
    assert rig.next(10.5) == Release(token, "stopped")
    rig.answer(True)
    assert rig.next() == Stop()


def test_stopping_while_an_acquire_is_in_flight_releases_what_it_got() -> None:
    rig = Rig()
    token = rig.to_acquire(10.0).token
    rig.machine.stop(now=10.1)
    assert rig.answer(Acquired(8, "life"), 10.2) == ()
    assert rig.next() == Release(token, "stopped")
    rig.answer(True)
    assert rig.next() == Stop()


def test_stopping_a_standby_is_immediate() -> None:
    rig = Rig()
    rig.see(HELD, 0.0)
    rig.machine.stop(now=0.1)
    assert rig.next(0.1) == Stop()
    assert rig.machine.phase is S.STOPPED


def test_a_candidate_that_waits_for_its_turn_can_be_stopped() -> None:
    rig = Rig()
    rig.inputs = {"rank": 2}
    rig.see(RELEASED, 10.0)
    assert rig.machine.phase is S.CANDIDATE
    rig.machine.stop(now=10.01)
    assert rig.next(10.01) == Stop()
    rig.machine.check_invariants()


@pytest.mark.parametrize("reply", [Lost("held", 12, "r1"), Lost("vacant", 0, "")])
def test_a_release_that_the_store_answers_with_lost_is_not_confirmed(reply: Lost) -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.drain(token)
    rig.machine.release("yield", now=10.5)
    assert rig.next(10.5) == Release(token, "yield")
    assert rig.answer(reply, 10.6) == (Released(token, False),)
    assert rig.machine.phase is S.RELEASED


def test_a_lease_that_is_lost_while_it_drains_was_not_released() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.drain(token)
    rig.renewal(11.0)
    assert rig.answer(Lost("held", 12, "r1")) == (Released(token, False),)


def test_a_draining_router_past_its_deadline_only_waits_to_release() -> None:
    rig = Rig()
    token = rig.to_owner(10.0)
    rig.machine.drain(token)
    assert rig.rest(20.0) == inf
    rig.machine.release("yield", now=20.0)
    assert rig.next() == Release(token, "yield")


def test_an_illegal_move_raises_and_changes_nothing() -> None:
    rig = Rig()
    rig.to_owner(10.0)
    with pytest.raises(InvariantViolation):
        rig.machine._move(S.STOPPED)
    assert rig.machine.phase is S.OWNER
