"""What state machines over a fleet under maintenance have in common: what engines show by themselves."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from narwhal.model.effect import Effect
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    Evidence,
    FailureClass,
    HealthProbed,
    Identified,
    IdentityOutcome,
    InferenceProbed,
    LegFailed,
    LegSucceeded,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.maintenance import DrainState
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ATTESTATION, KV_TRANSFER, ORDER

IIDS = ("p0", "p1", "d0", "d1")
WELL = tuple(Check(name, "passed") for name in ORDER)


MAY_BE_SKIPPED = ("", ATTESTATION, KV_TRANSFER)
"""The first is none."""


def without(checks: tuple[Check, ...], name: str) -> tuple[Check, ...]:
    """One of them skipped: for want of a partner or of a contract."""
    return tuple(Check(name, "skipped") if check.name == name else check for check in checks)


iids = st.sampled_from(IIDS)
CONTRACT = {"vllm_version": "0.32.0"}
contracts = st.sampled_from((None, CONTRACT))
starts = st.sampled_from((1000.0, 1000.0, 2000.0))
"""Two processes, one of them more often."""
skipped = st.sampled_from(("", "", *ORDER))
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
        self.heard(self.fleet.step(evidence, self.now))

    def heard(self, effects: Iterable[Effect]) -> None:
        """What the fleet tells of by itself."""

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.heard(self.fleet.tick(self.now))
        self.fleet.upkeep.expire(self.now)

    @rule(iid=iids, failure=st.sampled_from((FailureClass.STREAM, FailureClass.CONNECTION)))
    def legs_fail(self, iid: str, failure: FailureClass) -> None:
        for _ in range(3):
            self.step(LegFailed(iid, Leg.DECODE, failure, "way", "it broke"))

    @rule(iid=iids, start=st.none() | starts, skipped=skipped)
    def an_automatic_validation_is_good(self, iid: str, start: float | None, skipped: str) -> None:
        self.step(Validated(iid, without(WELL, skipped), process_start=start))

    @rule(iid=iids, outcome=st.sampled_from(IdentityOutcome), start=starts)
    def it_is_identified(self, iid: str, outcome: IdentityOutcome, start: float) -> None:
        self.step(Identified(iid, outcome, start, "unlike"))

    def all_are_identified(self) -> None:
        """As a contracted fleet starts; without a contract it means nothing."""
        for iid in IIDS:
            self.step(Identified(iid, IdentityOutcome.LIKE, 1000.0))

    @rule(iid=iids, outcome=outcomes)
    def it_is_looked_at(self, iid: str, outcome: ProbeOutcome) -> None:
        for evidence in (
            HealthProbed(iid, outcome),
            InferenceProbed(iid, outcome),
            LivenessSwept(iid, outcome),
            LegSucceeded(iid, Leg.DECODE),
        ):
            self.step(evidence)
