"""Anything in any order over a contracted fleet: with nobody left, nobody serves before its KV went round."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    CohortProved,
    FailureClass,
    Identified,
    IdentityOutcome,
    LegFailed,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.policy.ejections import WAIT_S
from narwhal.policy.readmission import ORDER
from tests.unit.policy.test_judgement import fleet_of

IIDS = ("d0", "d1", "p0")
WELL = tuple(Check(name, "passed") for name in ORDER)
ENDS = {
    "well": Validated("", WELL[-2:]),
    "failed": Validated("", (Check("kv_transfer", "failed", "no handoff"),)),
    "nothing": Validated("", (), conclusive=False),
    "half": Validated("", WELL[-2:-1]),
}

FAILURES = (FailureClass.STREAM, FailureClass.CONNECTION, FailureClass.TIMEOUT)

iids = st.sampled_from(IIDS)
ends = st.sampled_from(sorted(ENDS))


class Cohort(RuleBasedStateMachine):
    """`waits`: engine to since when it is well and waits, as the model knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.fleet = fleet_of(" ".join(IIDS), contract={"vllm_version": "1"}, liveness_misses=1)
        for iid in IIDS:
            self.fleet.step(Identified(iid, IdentityOutcome.LIKE, 10.0), self.now)
        self.waits: dict[str, float] = {}

    def serving(self) -> set[str]:
        return set(self.fleet.available(self.now))

    def ejected(self) -> set[str]:
        return set(self.fleet.standing(self.now).ejected)

    def drained(self) -> frozenset[str]:
        return self.fleet.upkeep.drains.out()

    @rule(iid=iids)
    def one_is_lost(self, iid: str) -> None:
        self.fleet.step(LivenessSwept(iid, ProbeOutcome.BAD, "refused"), self.now)

    @rule()
    def all_are_lost(self) -> None:
        for iid in IIDS:
            self.one_is_lost(iid)

    @rule(iid=iids, well=st.sampled_from((True, True, True, False)))
    def one_is_looked_at(self, iid: str, well: bool) -> None:
        before, ejected = self.serving(), iid in self.ejected() - self.drained()
        checks = WELL if well else (*WELL[:2], Check("model", "failed", "another"))
        self.fleet.step(Validated(iid, checks), self.now)
        new = self.serving() - before
        self.returned_clean(new)
        assert new <= {iid}
        assert bool(new) == (ejected and well and bool(before)), "alone it proves no transfer"
        if not well or new:
            self.waits.pop(iid, None)
        elif ejected:
            self.waits.setdefault(iid, self.now)

    @rule(told=st.dictionaries(iids, ends))
    def a_cohort_is_proved(self, told: dict[str, str]) -> None:
        before, waiting = self.serving(), set(self.waits) - self.drained()
        proved = (
            Validated(iid, ENDS[end].checks, conclusive=ENDS[end].conclusive) for iid, end in told.items()
        )
        self.fleet.step(CohortProved(tuple(proved)), self.now)
        well = {iid for iid, end in told.items() if end == "well"}
        self.returned_clean(self.serving() - before)
        assert self.serving() - before == waiting & well
        for iid in waiting & set(told):
            del self.waits[iid]

    @rule(seconds=st.sampled_from((1.0, 30.0, WAIT_S)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        before = self.serving()
        effects = self.fleet.tick(self.now)
        assert self.serving() == before, "time alone brings nobody back"
        asked = [
            one.members for one in effects if isinstance(one, ProbeWanted) and one.kind is ProbeKind.COHORT
        ]
        waiting = {iid: at for iid, at in self.waits.items() if iid not in self.drained()}
        if before:
            assert asked == []
            for iid in waiting:
                del self.waits[iid]  # They are looked at again, with a peer now.
            return
        complete = waiting and set(waiting) == self.ejected() - self.drained()
        over = waiting and self.now >= min(waiting.values()) + WAIT_S
        assert asked == ([tuple(sorted(waiting))] if complete or over else [])

    @rule(iid=iids)
    def one_is_drained(self, iid: str) -> None:
        self.fleet.upkeep.drain(iid, deadline_at=1e9)

    @rule(iid=iids)
    def one_is_readmitted(self, iid: str) -> None:
        if iid in self.drained():
            self.fleet.upkeep.drains.begin(iid)
            self.fleet.upkeep.validated(Validated(iid, WELL), process_start=20.0, now=self.now)
            self.waits.pop(iid, None)
            assert iid in self.serving()
            self.returned_clean({iid})

    @rule(iid=iids, failure=st.sampled_from(FAILURES))
    def what_was_in_flight_fails(self, iid: str, failure: FailureClass) -> None:
        """Where it is out; one that serves would be held."""
        if iid not in self.serving():
            self.fleet.step(LegFailed(iid, Leg.DECODE, failure, "x", "gone", request=b"r"), self.now)

    @rule(failure=st.sampled_from(FAILURES))
    def all_come_back(self, failure: FailureClass) -> None:
        for iid in IIDS:
            self.one_is_looked_at(iid, True)
        for iid in IIDS:
            self.what_was_in_flight_fails(iid, failure)
        self.a_cohort_is_proved(dict.fromkeys(IIDS, "well"))

    def returned_clean(self, engines: set[str]) -> None:
        view = self.fleet.standing(self.now)
        assert not engines & (set(view.failures) | set(view.verifying)), "it came back with what it had"

    @invariant()
    def an_outage_is_told_exactly_while_verdicts_leave_nobody(self) -> None:
        self.fleet.check_invariants()
        left = set(IIDS) - self.drained()
        outage = bool(left) and left <= self.ejected()
        assert self.fleet.export(self.now).lifecycle["backend_outage"] is outage
        assert self.serving() == left - self.ejected()


TestCohort = Cohort.TestCase
TestCohort.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
