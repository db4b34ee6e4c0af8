"""Any evidence in any order: who serves is what the truth table says, every hold ends, nobody is forgotten.

The model knows only what was told and asked: the effects are the whole word of the fleet.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted, Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    Evidence,
    FailureClass,
    HealthProbed,
    InferenceProbed,
    LegAnswered,
    LegFailed,
    LegSucceeded,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.placement import Demand
from narwhal.policy.fleet import Fleet
from narwhal.policy.membership import takes_last
from narwhal.policy.travel import Opening
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

IIDS = ("p0", "p1", "d0", "d1")
QUARANTINE_S = 5.0
EVERY_S = 10.0

iids = st.sampled_from(IIDS)
outcomes = st.sampled_from(ProbeOutcome)
legs = st.sampled_from((Leg.PREFILL, Leg.DECODE))


def new_fleet() -> Fleet:
    return fleet_of(
        " ".join(IIDS), pinned="d1", failure_quarantine_s=QUARANTINE_S, readmit_every=10, liveness_misses=2
    )


class Standing(RuleBasedStateMachine):
    """`out`: told to be ejected. `held`: kinds of hold told to have begun. `asked_at`: last asked to look."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.fleet = new_fleet()
        self.unverified: set[str] = set()
        self.out: set[str] = set()
        self.held: dict[str, set[str]] = {iid: set() for iid in IIDS}
        self.asked_at: dict[tuple[ProbeKind, str], float] = {}

    # --- what happens ----------------------------------------------------------------------------

    def step(self, evidence: Evidence) -> None:
        served = self.served()
        effects = self.fleet.step(evidence, self.now)
        self.take(effects)
        if not any(isinstance(one, Told) and one.kind == "ejection" for one in effects):
            assert served <= self.served(), f"{evidence} left a leg without an engine"

    def served(self) -> set[Leg]:
        return {leg for leg in (Leg.PREFILL, Leg.DECODE) if self.fleet.can_serve(leg, self.now)}

    def take(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, ProbeWanted):
                self.asked_at[effect.kind, effect.iid] = self.now
                continue
            assert isinstance(effect, Told)
            assert effect.fields["reason"]
            if effect.kind == "hold" and "refuted" in str(effect.fields["reason"]):
                self.asked_at[ProbeKind.INFERENCE, str(effect.fields["iid"])] = self.now  # It rests first.
            if effect.enforced and "iid" in effect.fields:
                self.take_told(effect.kind, str(effect.fields["iid"]), str(effect.fields.get("hold")))

    def take_told(self, kind: str, iid: str, hold: str) -> None:
        if kind == "ejection":
            assert iid not in self.out
            self.out.add(iid)
            self.asked_at[ProbeKind.READMISSION, iid] = self.now
        elif kind == "readmission":
            self.out.remove(iid)
            self.unverified.discard(iid)
        elif kind == "hold":
            # A quarantine that ran out between two passes is told as ended in the next one.
            assert hold not in self.held[iid] or hold == "quarantine"
            self.held[iid].add(hold)
        elif kind == "hold_ended":
            self.held[iid].remove(hold)

    @rule(iid=iids, leg=legs, failure=st.sampled_from(sorted(set(FailureClass) - {FailureClass.LIVENESS})))
    def a_leg_fails(self, iid: str, leg: Leg, failure: FailureClass) -> None:
        self.step(LegFailed(iid, leg, failure, "way", "it broke", peer="p0" if iid != "p0" else ""))

    @rule(iid=iids, failure=st.sampled_from((FailureClass.STREAM, FailureClass.CONNECTION)))
    def three_legs_fail(self, iid: str, failure: FailureClass) -> None:
        for _ in range(3):
            self.a_leg_fails(iid, Leg.DECODE, failure)

    @rule(iid=iids, leg=legs)
    def a_leg_succeeds(self, iid: str, leg: Leg) -> None:
        self.step(LegSucceeded(iid, leg))

    @rule(iid=iids, leg=legs)
    def an_engine_answers(self, iid: str, leg: Leg) -> None:
        self.step(LegAnswered(iid, leg, 400))

    @rule(iid=iids, outcome=outcomes, streaming=st.booleans(), sweep=st.booleans())
    def health_is_seen(self, iid: str, outcome: ProbeOutcome, streaming: bool, sweep: bool) -> None:
        if outcome is ProbeOutcome.GOOD:
            self.unverified.discard(iid)
        kind = LivenessSwept if sweep else HealthProbed
        self.step(kind(iid, outcome, "seen", streaming))

    @rule(iid=iids, outcome=outcomes)
    def inference_is_seen(self, iid: str, outcome: ProbeOutcome) -> None:
        standings = self.fleet.standings
        across = [one for one in standings.checks.producers(iid) if one and not standings.is_out(one)]
        # A good answer is one across where that is owed; a bad local one is bad enough.
        consumer = standings.checks.consumer(iid)
        if outcome is not ProbeOutcome.GOOD or standings.is_out(consumer):
            consumer = ""
        peer = across[0] if across and outcome is ProbeOutcome.GOOD and not consumer else ""
        self.step(InferenceProbed(iid, outcome, peer, detail="seen", consumer=consumer))
        # An answer that told nothing is an answer: the pause begins anew.
        self.asked_at[ProbeKind.INFERENCE, iid] = self.now
        if outcome is not ProbeOutcome.INCONCLUSIVE:
            assert iid not in self.fleet.standing(self.now).holds, "a probe decides"

    @rule(iid=iids, outcome=st.sampled_from(("passed", "failed")), conclusive=st.booleans())
    def checks_are_made(self, iid: str, outcome: str, conclusive: bool) -> None:
        was_out = iid in self.out
        self.step(Validated(iid, (Check("health", outcome),), conclusive))
        if was_out:
            assert (iid in self.out) is not (conclusive and outcome == "passed")

    @rule(iid=iids)
    def drift_asks_for_an_ejection(self, iid: str) -> None:
        served = self.served()
        self.take(self.fleet.standings.evict(iid, "its tokens come slower", now=self.now))
        assert served <= self.served(), "a drift verdict took the last engine"

    @rule(by_s=st.floats(0.0, 7.0))
    def time_passes(self, by_s: float) -> None:
        self.now += by_s

    @rule(count=st.integers(1, 25))
    def passes_are_made(self, count: int) -> None:
        for _ in range(count):
            self.now += 1.0
            self.a_pass_is_made()

    def a_pass_is_made(self) -> None:
        self.take(self.fleet.tick(self.now))
        view = self.fleet.standing(self.now)
        for iid, hold in view.holds.items():
            if hold.kind == "inference":
                most_s = 2 * EVERY_S if "refuted" in hold.reason else EVERY_S
                assert self.now - self.asked_at[ProbeKind.INFERENCE, iid] <= most_s, "nobody looks again"
        for iid in view.ejected:
            assert self.now - self.asked_at[ProbeKind.READMISSION, iid] <= EVERY_S, "nobody looks again"
        for iid, held in self.held.items():
            assert held <= {view.holds[iid].kind if iid in view.holds else None, "quarantine"}

    @rule(cautious=st.booleans(), away_s=st.floats(0.0, 3.0))
    def another_router_takes_over(self, cautious: bool, away_s: float) -> None:
        state = self.fleet.export(self.now)
        roles = {iid: role.value for iid, role in state.roles.items()}
        document = replace(
            handoff_document(**roles),
            ejected=state.ejected,
            inference_sources=state.inference_sources,
            holds=state.holds,
            streaks=state.streaks,
        )
        before = self.fleet.standing(self.now)
        self.now += away_s
        self.fleet = new_fleet()
        self.fleet.restore(document, self.now, opening=Opening(cautious=cautious))
        after = self.fleet.standing(self.now)
        assert (after.ejected, after.failures) == (before.ejected, before.failures)
        held = {iid for iid, hold in before.holds.items() if hold.kind == "inference"}
        for iid in held - set(after.holds):
            # Others went after it was held: a new owner does not begin with nobody for the sake of a hold.
            assert takes_last(
                iid, able=self.fleet.standings.able, eligible=set(IIDS) - self.out - set(after.holds)
            )
        self.unverified = set(IIDS) if cautious else set()
        self.held = {iid: {after.holds[iid].kind} if iid in after.holds else set() for iid in IIDS}
        quarantined = {iid for iid, one in state.holds.items() if iid in after.holds}
        for iid in quarantined:
            self.held[iid].add("quarantine")
        self.asked_at = {(kind, iid): self.now for kind in ProbeKind for iid in IIDS}

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def who_serves_is_what_the_truth_table_says(self) -> None:
        view = self.fleet.standing(self.now)
        assert set(view.ejected) == self.out
        well = set(IIDS) - self.out - set(view.holds) - self.unverified
        assert set(self.fleet.available(self.now)) == well
        assert {iid for iid in IIDS if self.fleet.eligible(iid, self.now)} == well
        for place in (
            self.fleet.reserve_prefill(Demand(1), self.now),
            self.fleet.reserve_decode(Demand(1), self.now, producer="p0"),
        ):
            if place is not None:
                assert place.iid in well
                self.fleet.release(place, self.now)
        self.fleet.check_invariants()

    @invariant()
    def quarantines_are_bounded_and_ejected_engines_are_not_held(self) -> None:
        view = self.fleet.standing(self.now)
        assert self.out.isdisjoint(view.holds)
        assert all(hold.reason for hold in view.holds.values())
        left = [hold.remaining_s for hold in view.holds.values() if hold.remaining_s is not None]
        assert all(0 < seconds <= QUARANTINE_S for seconds in left)


TestStanding = Standing.TestCase
TestStanding.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
