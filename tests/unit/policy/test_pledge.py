"""Fail-safe mode: who pledges, what a pledge forbids, and what it is worth to the owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.control import RouterState
from narwhal.model.handover import PledgeAnswer, PledgeQuestion
from narwhal.model.leadership import Remembered
from narwhal.model.lease import Acquired, LeaseState, LeaseVersion, holder_of
from narwhal.model.settings import LeaseTimings
from narwhal.policy.candidacy import ElectionSettings
from narwhal.policy.election import Election
from narwhal.policy.intents import Acquire, AskPledges, Extended, Fenced, Peek, Pledged, Release, Renew, Rest
from tests.unit.policy.election_rig import HELD, RELEASED, Rig

QUESTION = PledgeQuestion("r0", "r1:00ff", epoch=9, ttl_s=5.0, nonce="n")


class Voter(Rig):
    """Router r0 of the voters r0, r1, r2."""

    def __init__(self, *voters: str) -> None:
        super().__init__()
        settings = ElectionSettings("r0", LeaseTimings(), voters=frozenset(voters or ("r0", "r1", "r2")))
        self.machine = Election(settings, Remembered(), now=0.0)

    def ask(self, now: float, question: PledgeQuestion = QUESTION) -> PledgeAnswer:
        self.now = now
        return self.machine.pledge(question, now)

    def reason(self, now: float, question: PledgeQuestion = QUESTION) -> str:
        told = self.ask(now, question)
        assert told.nonce == question.nonce
        assert told.pledged is (told.reason == "")
        return told.reason

    def standing_by(self, now: float = 10.0) -> None:
        """Sees a lease held by another, then nothing any more."""
        self.see(HELD, now)
        assert self.next(now + 0.25) == Peek()
        self.answer(None)


def test_a_voter_whose_store_is_silent_pledges() -> None:
    voter = Voter()
    voter.standing_by(10.0)
    assert voter.ask(11.1) == PledgeAnswer(True, "", "n")


def test_a_voter_that_has_seen_nothing_pledges() -> None:
    assert Voter().reason(0.0) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"voter": "r2"}, "this is router r0"),
        ({"holder": "r9:00ff"}, "router r9 is no other voter here"),
        ({"holder": "r0:00ff"}, "router r0 is no other voter here"),
        ({"holder": "nobody"}, "router  is no other voter here"),
        ({"epoch": 6}, "the lease has epoch 7, above 6"),
        ({"epoch": 7}, "epoch 7 has another holder"),
    ],
)
def test_a_question_that_does_not_match_is_refused(change: dict[str, object], reason: str) -> None:
    voter = Voter()
    voter.standing_by(10.0)
    assert voter.reason(20.0, replace(QUESTION, **change)) == reason  # type: ignore[arg-type]
    assert voter.machine.candidacy.pledge.until < 0.0


def test_the_holder_as_last_seen_gets_its_pledge() -> None:
    voter = Voter()
    voter.standing_by(10.0)
    assert voter.reason(20.0, replace(QUESTION, epoch=7, holder=holder_of("r1", "x"))) == ""


def test_an_epoch_that_was_released_gets_none() -> None:
    voter = Voter()
    voter.inputs = {"may_compete": False}
    voter.see(replace(RELEASED, owner="r1"), 10.0)
    voter.now = 10.25
    question = replace(QUESTION, epoch=7, holder=holder_of("r1", "x"))
    assert voter.reason(20.0, question) == "epoch 7 was released"


def test_without_fail_safe_nobody_pledges_and_a_router_that_is_no_voter_neither() -> None:
    plain = Rig().machine.pledge(QUESTION, 5.0)
    assert plain == PledgeAnswer(False, "fail-safe mode is off here", "n")
    assert Voter("r1", "r2").reason(5.0) == "this router is no voter"


def test_a_store_that_answered_within_a_second_forbids_a_pledge() -> None:
    voter = Voter()
    voter.standing_by(10.0)
    assert voter.reason(11.0) == "the store answered 1.0 s ago"
    assert voter.reason(11.01) == ""


def test_an_owner_does_not_pledge_whether_it_restores_renews_or_drains() -> None:
    voter = Voter()
    token = voter.to_restoring(10.0)
    assert voter.reason(13.0) == "this router owns the fleet"
    voter.machine.opened(token)
    assert voter.reason(13.0) == "this router owns the fleet"
    voter.machine.drain(token)
    assert voter.reason(13.0) == "this router owns the fleet"


def test_an_acquire_without_an_answer_forbids_a_pledge_until_it_is_released() -> None:
    voter = Voter()
    voter.to_acquire(10.0)
    assert voter.reason(13.0) == "an acquire of this router is unresolved"
    voter.answer(None, 13.0)
    voter.machine.gave_up(14.0)
    assert voter.reason(14.0) == "an acquire of this router is unresolved"
    assert isinstance(voter.next(14.0), Release)
    voter.answer(True, 14.0)
    assert voter.reason(14.0) == ""


def test_who_pledged_acquires_nothing_before_the_pledge_ends() -> None:
    voter = Voter()
    voter.standing_by(10.0)
    assert voter.ask(12.0).pledged
    for now in (12.1, 14.0, 16.9):
        assert isinstance(voter.see(RELEASED, now), Rest)
    assert isinstance(voter.see(RELEASED, 17.3), Acquire)


def test_a_pledge_lasts_the_longer_ttl_and_never_shrinks() -> None:
    voter = Voter()
    assert voter.ask(10.0, replace(QUESTION, ttl_s=8.0)).pledged
    assert voter.machine.candidacy.pledge.until == 18.0
    assert voter.ask(11.0, replace(QUESTION, ttl_s=1.0)).pledged
    assert voter.machine.candidacy.pledge.until == 18.0
    assert voter.ask(14.0, replace(QUESTION, ttl_s=1.0)).pledged
    assert voter.machine.candidacy.pledge.until == 19.0


def test_an_acquire_that_is_granted_under_a_pledge_is_discarded_and_released() -> None:
    """The second lock: whatever let a pledge pass beside an acquire, the pledge wins."""
    voter = Voter()
    voter.to_acquire(10.0)
    voter.machine.candidacy.pledge.until = 12.0
    assert voter.answer(Acquired(8, "life"), 11.9) == ()
    assert voter.machine.phase is RouterState.ACQUIRING
    released = voter.next(11.9)
    assert isinstance(released, Release)


def test_only_voters_acquire() -> None:
    stranger = Voter("r1", "r2")
    for now in (10.0, 20.0, 40.0):
        assert isinstance(stranger.see(RELEASED, now), Rest)


# --- the owner -----------------------------------------------------------------------------------


class Owner(Voter):
    """Owns since 10.0: renews at 11.0, D is 14.0."""

    def __init__(self, *voters: str) -> None:
        super().__init__(*voters)
        self.token = self.to_owner(10.0)

    def unanswered(self, now: float) -> None:
        assert isinstance(self.next(now), Renew)
        self.answer(None, now + 0.8)

    def again(self, now: float) -> object:
        self.now = now
        self.machine.tick(now)
        return self.machine.again(now, main_alive=True)


def test_an_owner_whose_renewal_got_no_answer_asks_the_voters() -> None:
    owner = Owner()
    owner.unanswered(11.0)
    assert owner.again(12.05) == AskPledges(owner.token, 8)


def test_pledges_of_all_move_the_deadline_to_before_the_question_plus_t_minus_m() -> None:
    owner = Owner()
    owner.unanswered(11.0)
    owner.again(12.0)
    assert owner.answer(Pledged(), 12.7) == (Extended(owner.token, 16.0),)
    assert owner.machine.tenure is not None
    assert owner.machine.tenure.deadline == 16.0
    assert owner.machine.phase is RouterState.SUSPECT


def test_without_all_pledges_the_deadline_stays() -> None:
    owner = Owner()
    owner.unanswered(11.0)
    owner.again(12.0)
    assert owner.answer(None, 12.7) == ()
    assert owner.machine.tick(14.0) == (Fenced(owner.token, "lease deadline passed"),)


def test_pledges_that_arrive_at_the_deadline_are_discarded() -> None:
    owner = Owner()
    owner.unanswered(11.0)
    owner.again(13.5)
    assert owner.answer(Pledged(), 14.0) == (Fenced(owner.token, "lease deadline passed"),)
    assert owner.machine.phase is RouterState.FENCED


def test_renewals_go_on_between_the_questions() -> None:
    owner = Owner()
    owner.unanswered(11.0)
    assert isinstance(owner.again(12.0), AskPledges)
    owner.answer(Pledged(), 12.1)
    renewal = owner.again(12.35)
    assert isinstance(renewal, Renew)
    owner.answer(None, 13.15)
    question = owner.again(13.4)
    assert isinstance(question, AskPledges)
    owner.answer(Pledged(), 13.4)
    assert owner.machine.tenure is not None
    assert owner.machine.tenure.deadline == 17.4


@pytest.mark.parametrize("voters", [("r1", "r2"), ("r0",)])
def test_who_is_no_voter_or_has_no_other_asks_nobody(voters: tuple[str, ...]) -> None:
    owner = Voter()
    owner.to_owner(10.0)
    owner.machine._rounds.others = frozenset(voters) - {"r0"} if "r0" in voters else frozenset()
    assert isinstance(owner.next(11.0), Renew)
    owner.answer(None, 11.8)
    assert isinstance(owner.machine.again(12.0, main_alive=True), Renew)


def test_an_owner_whose_main_loop_hangs_asks_nobody() -> None:
    owner = Owner()
    owner.unanswered(11.0)
    assert owner.machine.again(12.0, main_alive=False) is None


def test_a_held_lease_that_was_never_seen_vacant_is_no_contradiction() -> None:
    voter = Voter()
    vacant = replace(HELD, state=LeaseState.VACANT, version=LeaseVersion("n", 0), epoch=0, owner="")
    voter.see(vacant, 10.0)
    voter.now = 10.0
    assert voter.reason(12.0) == ""
