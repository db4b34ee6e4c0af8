"""Fail-safe mode: voters that promise not to acquire while the store is down (cluster.md section 5).

Pure. The voters are named in the configuration of every router; only they may acquire. An owner whose store
is silent asks **all** others; if all pledge not to acquire for T, its deadline D moves to (clock before the
question) + T - M. So whoever could acquire next does so only after D + M, as if the lease had been renewed.

A voter refuses a question that is not meant for it or by no fellow voter; one by an older owner than it has
seen; while it owns, restores or has an acquire of its own unresolved; and when the store answered it within
the last second (then the lease decides).
"""

from __future__ import annotations

from math import inf

from narwhal.model.handover import PledgeAnswer, PledgeQuestion
from narwhal.model.lease import LeaseState, LeaseView, holder_of
from narwhal.policy.intents import AskPledges
from narwhal.policy.tenure import Tenure

GOOD_PEEK_S = 1.0
"""A store that answered within this is up."""
ASK_EVERY_S = 0.5


class Pledge:
    """One voter's side. `voters` is empty where fail-safe mode is off."""

    def __init__(self, me: str, voters: frozenset[str], *, ttl_s: float) -> None:
        self._me = me
        self._voters = voters
        self._ttl_s = ttl_s
        self.until = -inf
        """No acquire of ours before this, on the router's clock."""

    @property
    def may_acquire(self) -> bool:
        return not self._voters or self._me in self._voters

    def answer(self, question: PledgeQuestion, now: float, *, refusal: str) -> PledgeAnswer:
        """`refusal`: why the voter's own state forbids it, "" if it does not. `now`: after the question
        came, so that the promise outlives the asker's deadline."""
        reason = self._stranger(question) or refusal
        if not reason:
            self.until = max(self.until, now + max(question.ttl_s, self._ttl_s))
        return PledgeAnswer(not reason, reason, question.nonce)

    def _stranger(self, question: PledgeQuestion) -> str:
        if not self._voters:
            return "fail-safe mode is off here"
        if question.voter != self._me:
            return f"this is router {self._me}"
        if not self.may_acquire:
            return "this router is no voter"
        asker = question.holder.rpartition(":")[0]
        if asker not in self._voters or asker == self._me:
            return f"router {asker} is no other voter here"
        return ""


def contradiction(question: PledgeQuestion, view: LeaseView | None) -> str:
    """What the lease as last seen says against the asker, "" if nothing. An owner newer than what was seen
    is believed: what the voter holds back from is its own acquire."""
    if view is None or view.version is None or view.state is None:
        return ""
    if view.epoch > question.epoch:
        return f"the lease has epoch {view.epoch}, above {question.epoch}"
    if view.epoch == question.epoch and view.state is not LeaseState.VACANT:
        if holder_of(view.owner, view.version.token) != question.holder:
            return f"epoch {view.epoch} has another holder"
        if view.state is LeaseState.RELEASED:
            return f"epoch {view.epoch} was released"
    return ""


class Rounds:
    """The owner's side: when to ask the other voters again."""

    def __init__(self, me: str, voters: frozenset[str]) -> None:
        self.others = voters - {me} if me in voters else frozenset()
        self.asked_at = -inf
        """Before the last question was sent."""

    def next(self, tenure: Tenure, now: float) -> AskPledges | None:
        """A question, if it is time and would move D."""
        gain_s = now + tenure.term_s - tenure.deadline
        if not self.others or gain_s <= ASK_EVERY_S or now < self.asked_at + ASK_EVERY_S:
            return None
        self.asked_at = now
        return AskPledges(tenure.token, tenure.epoch)
