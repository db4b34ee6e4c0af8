"""Any order of looks, restarts, verdicts, orders and takeovers: who serves is a process that was accepted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import (
    Check,
    Evidence,
    Identified,
    IdentityOutcome,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.maintenance import DrainOrder
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ORDER
from narwhal.policy.travel import Opening
from tests.support.maintained_fleet import legs_left
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

ROLES = {"p0": "prefill", "d0": "decode", "d1": "decode"}
iids = st.sampled_from(sorted(ROLES))
WELL = tuple(Check(name, "passed") for name in ORDER)


class Identities(RuleBasedStateMachine):
    """`live`: the process that each engine really is. `proved`: those that some look or check has shown, and
    `newest` the one of its last readmission. `asked`: what was asked for, with the process that answers."""

    @initialize(policy=st.sampled_from(("individual", "whole_wave")))
    def begin(self, policy: str) -> None:
        self.policy = policy
        self.now = 100.0
        self.live = dict.fromkeys(ROLES, 1000.0)
        self.proved: dict[str, set[float]] = {iid: set() for iid in ROLES}
        self.newest = dict.fromkeys(ROLES, 0.0)
        self.asked: list[tuple[ProbeWanted, float]] = []
        self.fleet = self.new_fleet()

    def new_fleet(self) -> Fleet:
        contract = {"vllm_version": "0.32.0"}
        return fleet_of(" ".join(ROLES), contract=contract, engine_restart_policy=self.policy)

    def step(self, evidence: Evidence) -> None:
        self.note(self.fleet.step(evidence, self.now))

    def note(self, effects: tuple[object, ...]) -> None:
        wanted = [one for one in effects if isinstance(one, ProbeWanted) and one.kind is ProbeKind.IDENTITY]
        self.asked = [*self.asked, *((one, self.live[one.iid]) for one in wanted)][-20:]

    # --- what happens ----------------------------------------------------------------------------

    @rule(iid=iids)
    def restarts(self, iid: str) -> None:
        self.live[iid] += 60.0

    @rule(outcome=st.sampled_from(IdentityOutcome), choice=st.integers(0, 19))
    def is_looked_at(self, outcome: IdentityOutcome, choice: int) -> None:
        """The answer to some asking, early or late."""
        if not self.asked:
            return
        probe, start = self.asked.pop(choice % len(self.asked))
        if outcome is IdentityOutcome.LIKE:
            self.proved[probe.iid].add(start)
        told = start if outcome in (IdentityOutcome.LIKE, IdentityOutcome.UNLIKE) else None
        self.step(Identified(probe.iid, outcome, told, "why", number=probe.number))

    @rule(iid=iids, good=st.booleans())
    def is_swept(self, iid: str, good: bool) -> None:
        self.step(LivenessSwept(iid, ProbeOutcome.GOOD if good else ProbeOutcome.BAD, "refused"))

    @rule(iid=iids)
    def passes_every_check(self, iid: str) -> None:
        """Those of an automatic readmission."""
        standings = self.fleet.standings
        if standings.is_ejected(iid) and iid not in standings.drained:
            self.proved[iid].add(self.live[iid])
            self.newest[iid] = self.live[iid]
            self.step(Validated(iid, WELL, process_start=self.live[iid]))

    @rule(iid=iids)
    def is_drained_by_an_order(self, iid: str) -> None:
        had = legs_left(self.fleet)
        if not self.fleet.upkeep.orders.refuses_drain(DrainOrder((iid,)), self.now):
            self.is_drained(iid)
            assert legs_left(self.fleet) >= had, "a leg lost its last engine"

    def is_drained(self, iid: str) -> None:
        self.note(self.fleet.upkeep.drain(iid, deadline_at=1e9))

    @rule(iid=iids)
    def is_readmitted(self, iid: str) -> None:
        upkeep = self.fleet.upkeep
        if upkeep.drains.record(iid).out and not upkeep.wave.reason:
            upkeep.drains.begin(iid)
            self.proved[iid].add(self.live[iid])
            self.newest[iid] = self.live[iid]
            self.note(upkeep.validated(Validated(iid, WELL), process_start=self.live[iid], now=self.now))

    @rule(iid=iids)
    def goes_through_maintenance(self, iid: str) -> None:
        self.is_swept(iid, good=True)
        self.is_drained(iid)
        self.restarts(iid)
        self.is_readmitted(iid)

    @rule(seconds=st.sampled_from((1.0, 30.0, 61.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.note(self.fleet.tick(self.now))
        assert not set(self.fleet.identification.owing()).intersection(
            iid for iid in ROLES if self.fleet.standings.is_out(iid)
        )

    @rule(cautious=st.booleans(), verify=st.booleans(), compare=st.booleans())
    def another_owner(self, cautious: bool, verify: bool, compare: bool) -> None:
        state = self.fleet.export(self.now)
        document = replace(
            handoff_document(**ROLES),
            ejected=state.ejected,
            ejections=state.ejections,
            lifecycle=state.lifecycle,
            model="tiny",
        )
        self.fleet, self.asked = self.new_fleet(), []
        self.fleet.restore(document, self.now, opening=Opening(cautious, verify or not compare, compare))
        assert "no accepted process" not in self.fleet.upkeep.wave.reason, "our own state fits us"

    # --- always ----------------------------------------------------------------------------------

    @invariant()
    def who_serves_was_accepted_and_nobody_serves_while_one_is_owed(self) -> None:
        if not hasattr(self, "fleet"):
            return
        self.fleet.check_invariants()
        serving = self.fleet.available(self.now)
        assert not (serving and self.fleet.identification.awaiting)
        accepted = self.fleet.export(self.now).lifecycle["process_starts"]
        for iid in serving:
            assert accepted[iid] in self.proved[iid]
        for iid, start in accepted.items():
            assert start >= self.newest[iid], "an answer from before the readmission"


TestIdentities = Identities.TestCase
TestIdentities.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
