"""What state machines over a fleet under maintenance have in common: what engines show by themselves."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    Evidence,
    FailureClass,
    HealthProbed,
    InferenceProbed,
    LegFailed,
    LegSucceeded,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.maintenance import DrainState
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ORDER

IIDS = ("p0", "p1", "d0", "d1")
WELL = tuple(Check(name, "passed") for name in ORDER)
iids = st.sampled_from(IIDS)
outcomes = st.sampled_from(ProbeOutcome)


def legs_left(fleet: Fleet) -> set[Leg]:
    """Legs that somebody may serve now, or as soon as his checks are in."""
    standings = fleet.standings
    return {leg for leg, able in standings.able.items() if not all(map(standings.is_out, able))}


class MaintainedFleet(RuleBasedStateMachine):
    fleet: Fleet

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def state(self, iid: str) -> DrainState:
        return self.fleet.upkeep.drains.record(iid).state

    def step(self, evidence: Evidence) -> None:
        self.fleet.step(evidence, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.fleet.tick(self.now)
        self.fleet.upkeep.expire(self.now)

    @rule(iid=iids, failure=st.sampled_from((FailureClass.STREAM, FailureClass.CONNECTION)))
    def legs_fail(self, iid: str, failure: FailureClass) -> None:
        for _ in range(3):
            self.step(LegFailed(iid, Leg.DECODE, failure, "way", "it broke"))

    @rule(iid=iids)
    def an_automatic_validation_is_good(self, iid: str) -> None:
        self.step(Validated(iid, WELL))

    @rule(iid=iids, outcome=outcomes)
    def it_is_looked_at(self, iid: str, outcome: ProbeOutcome) -> None:
        for evidence in (
            HealthProbed(iid, outcome),
            InferenceProbed(iid, outcome),
            LivenessSwept(iid, outcome),
            LegSucceeded(iid, Leg.DECODE),
        ):
            self.step(evidence)
