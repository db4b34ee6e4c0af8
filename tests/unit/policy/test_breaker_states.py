"""The breaker against a model that remembers every failure and success: no streak without evidence."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from narwhal.model.evidence import FailureClass
from narwhal.policy.breaker import Breaker, Proof, Verdict

IIDS = ("e0", "e1")
EJECT_AFTER, MISSES = 3, 2

# failures.md sections 3 and 4, written out a second time.
CLEARS = {
    Proof.ANSWER: "connection inference_status",
    Proof.HEALTH: "connection timeout overload liveness",
    Proof.PREFILL: "connection inference_status kv_handoff",
    Proof.DECODE: "connection inference_status stream",
    Proof.INFERENCE: "connection inference_status kv_handoff stream",
}
ASKS = {
    "connection": Verdict.EJECT,
    "timeout": Verdict.HEALTH,
    "stream": Verdict.HOLD,
    "overload": Verdict.HEALTH,
    "inference_status": Verdict.HOLD,
    "kv_handoff": Verdict.HOLD,
    "liveness": Verdict.EJECT,
}

iids = st.sampled_from(IIDS)


class Streaks(RuleBasedStateMachine):
    """The model is the list of all that happened to each engine; a streak is counted back from its end."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(eject_after=EJECT_AFTER, liveness_misses=MISSES)
        self.past: dict[str, list[str | Proof]] = {iid: [] for iid in IIDS}

    def streak(self, iid: str, name: str) -> int:
        count = 0
        for event in reversed(self.past[iid]):
            if isinstance(event, Proof) and name in CLEARS[event].split():
                break
            count += event == name
        return count

    @rule(iid=iids, failure=st.sampled_from(FailureClass))
    def fails(self, iid: str, failure: FailureClass) -> None:
        self.past[iid].append(failure.value)
        threshold = MISSES if failure is FailureClass.LIVENESS else EJECT_AFTER
        due = self.streak(iid, failure.value) >= threshold
        assert self.breaker.failed(iid, failure) is (ASKS[failure.value] if due else None)

    @rule(iid=iids, proof=st.sampled_from(Proof))
    def succeeds(self, iid: str, proof: Proof) -> None:
        had = {c for c in FailureClass if self.streak(iid, c.value) and c.value in CLEARS[proof].split()}
        assert self.breaker.proved(iid, proof) == had
        self.past[iid].append(proof)

    @rule(iid=iids, failure=st.sampled_from(FailureClass))
    def is_pardoned(self, iid: str, failure: FailureClass) -> None:
        self.breaker.take_back(iid, failure)
        if self.streak(iid, failure.value):
            past = self.past[iid]
            del past[len(past) - 1 - past[::-1].index(failure.value)]

    @rule()
    def travels(self) -> None:
        told = self.breaker.streaks()
        self.breaker = Breaker(eject_after=EJECT_AFTER, liveness_misses=MISSES)
        self.breaker.restore(told, engines=IIDS)

    @invariant()
    def every_streak_has_its_evidence(self) -> None:
        told = self.breaker.streaks()
        for iid in IIDS:
            model = {c.value: self.streak(iid, c.value) for c in FailureClass}
            assert told.get(iid, {}) == {name: count for name, count in model.items() if count}
            assert self.breaker.suspects(iid) == (iid in told)


TestStreaks = Streaks.TestCase
TestStreaks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
