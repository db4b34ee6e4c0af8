"""Anything in any order over a fleet with waves: a held fleet serves again by a completed wave only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, precondition, rule

from narwhal.model.effect import Effect, Told
from narwhal.model.evidence import (
    Check,
    CohortProved,
    Evidence,
    Validated,
)
from narwhal.model.maintenance import Captured, DrainOrder, DrainState, WaveState, WorkLeft
from narwhal.model.placement import Demand
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ORDER
from narwhal.policy.travel import Opening
from tests.support.maintained_fleet import (
    IIDS,
    MAY_BE_SKIPPED,
    WELL,
    MaintainedFleet,
    contracts,
    iids,
    skipped,
    starts,
    without,
)
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

WAVE = DrainOrder((), wave=True, deadline_s=50.0)

passed = st.integers(0, len(ORDER))


def ended(iid: str, passed: int, *, conclusive: bool = True, skipped: str = "") -> Validated:
    """The check after those that passed failed, or could not be made."""
    checks = without(WELL[:passed], skipped)
    if conclusive and passed < len(ORDER):
        checks = (*checks, Check(ORDER[passed], "failed", "it broke"))
    return Validated(iid, checks, conclusive=conclusive)


def proved(told: Validated) -> bool:
    """Every check was made and passed, but for one that may be skipped."""
    outcomes = {check.name: check.outcome for check in told.checks}
    missed = [name for name, outcome in outcomes.items() if outcome != "passed"]
    return tuple(outcomes) == ORDER and all(
        name in MAY_BE_SKIPPED and outcomes[name] == "skipped" for name in missed
    )


class Waves(MaintainedFleet):
    """`held`: a wave is drained or required, as the model knows it from what it did and what was told;
    `taken_over`: another owner came since."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.held = False
        self.taken_over = False
        self.on: str | None = None
        self.out: set[str] = set()
        self.ready: set[str] = set()
        self.policy = "individual"
        self.contract: dict[str, Any] | None = None
        self.fleet = self.new_fleet()

    @initialize(policy=st.sampled_from(("individual", "whole_wave")), contract=contracts)
    def begin_with(self, policy: str, contract: dict[str, Any] | None) -> None:
        self.policy, self.contract = policy, contract
        self.fleet = self.new_fleet()
        self.all_are_identified()

    def new_fleet(self) -> Fleet:
        return fleet_of(
            " ".join(IIDS),
            pinned="d1",
            contract=self.contract,
            liveness_misses=2,
            engine_restart_policy=self.policy,
        )

    def validating(self) -> bool:
        return all(self.state(iid) is DrainState.VALIDATING for iid in IIDS)

    # --- orders ----------------------------------------------------------------------------------

    @rule(named=st.booleans())
    def a_wave_is_drained(self, named: bool) -> None:
        order = replace(WAVE, engines=IIDS, wave=False) if named else WAVE
        upkeep = self.fleet.upkeep
        assert upkeep.orders.refuses_drain(order, self.now) == ""
        self.number += 1
        upkeep.drain_wave(f"w{self.number}", deadline_at=self.now + 50.0)
        assert all(self.state(iid) is not DrainState.VALIDATING for iid in IIDS)
        self.on = self.on or f"w{self.number}"
        self.held = True
        self.out = set(IIDS)

    @rule(iid=iids)
    def one_is_drained(self, iid: str) -> None:
        why = self.fleet.upkeep.orders.refuses_drain(DrainOrder((iid,)), self.now)
        assert why or (self.policy == "individual" and (self.on or not self.held))
        if not why:
            self.fleet.upkeep.drain(iid, deadline_at=self.now + 50.0)
            assert self.on or self.state(iid) is not DrainState.VALIDATING
            self.out.add(iid)

    @rule(why=st.sampled_from(("another model", "another process")))
    def a_wave_is_required(self, why: str) -> None:
        self.fleet.upkeep.require_wave(why)
        self.held = True

    @rule(iid=iids)
    def captured(self, iid: str) -> None:
        if iid in self.out:
            self.fleet.upkeep.captured(iid, Captured(self.now, "0.11.0"))

    @rule(iid=iids, left=st.sampled_from((0, 0, 1)))
    def work_is_looked_at(self, iid: str, left: int) -> None:
        if self.fleet.upkeep.settle(iid, WorkLeft(0, left, 0, 0, 0)):
            assert left == 0
            self.ready.add(iid)

    # --- readmissions ----------------------------------------------------------------------------

    @rule()
    def a_wave_is_readmitted(self) -> None:
        why = self.fleet.upkeep.orders.refuses_readmit(WAVE)
        assert (why == "") == (self.on is not None)
        if not why:
            self.fleet.upkeep.begin_wave()
            self.ready.clear()

    @precondition(lambda self: self.on is not None)
    @rule(iid=iids, count=passed, conclusive=st.booleans(), missing=st.booleans(), skipped=skipped)
    def a_member_fails(self, iid: str, count: int, conclusive: bool, missing: bool, skipped: str) -> None:
        """It ended after that many checks, or was not looked at at all; the others did well."""
        told = {one: ended(one, len(ORDER)) for one in IIDS}
        told[iid] = ended(iid, count, conclusive=conclusive, skipped=skipped)
        if missing:
            told.pop(iid)
        self.a_wave_is_readmitted()
        self.wave_validated(told)

    @precondition(lambda self: self.on is not None)
    @rule(iid=iids)
    def a_member_ends_alone(self, iid: str) -> None:
        """An answer of a validation that began before the wave."""
        self.a_wave_is_readmitted()
        self.one_validated(iid, len(ORDER), conclusive=True)

    @precondition(lambda self: self.on is not None)
    @rule(cautious=st.booleans())
    def another_owner_comes_during_its_validation(self, cautious: bool) -> None:
        self.a_wave_is_readmitted()
        self.another_owner(cautious)
        self.wave_validated({iid: ended(iid, len(ORDER)) for iid in IIDS})

    @precondition(lambda self: self.on is not None)
    @rule(start=starts, skipped=st.sampled_from(MAY_BE_SKIPPED))
    def its_validation_ends_well(self, start: float, skipped: str) -> None:
        self.a_wave_is_readmitted()
        # Checks outlast a pass. In it whoever is drained ceases to owe an identity: attestation is a check.
        self.pass_time(0.0)
        self.wave_validated({iid: ended(iid, len(ORDER), skipped=skipped) for iid in IIDS}, start=start)
        assert self.fleet.available(self.now) == tuple(sorted(IIDS))
        assert self.fleet.standing(self.now).ejected == ()

    def wave_validated(self, told: dict[str, Validated], *, start: float = 2000.0) -> None:
        under_way = self.on is not None and self.validating()
        well = len(told) == len(IIDS) and all(one.conclusive and proved(one) for one in told.values())
        effects = self.fleet.upkeep.wave_validated(
            told, process_starts=dict.fromkeys(told, start), now=self.now
        )
        assert bool(effects) == under_way
        if under_way and well:
            self.held, self.on = False, None
            self.out.clear()
            self.ready.clear()
        elif under_way:
            assert self.fleet.upkeep.wave.error
            assert {self.state(iid) for iid in IIDS} == {DrainState.BLOCKED}

    @rule(iid=iids, count=passed, conclusive=st.booleans(), skipped=skipped)
    def one_is_readmitted(self, iid: str, count: int, conclusive: bool, skipped: str) -> None:
        why = self.fleet.upkeep.orders.refuses_readmit(DrainOrder((iid,)))
        if not why and self.state(iid) is not DrainState.VALIDATING:
            assert self.policy == "individual"
            assert not self.held
            self.fleet.upkeep.drains.begin(iid)
            self.ready.discard(iid)
        self.one_validated(iid, count, conclusive=conclusive, skipped=skipped)

    @rule(iid=iids, count=passed)
    def one_validation_ends_late(self, iid: str, count: int) -> None:
        self.one_validated(iid, count, conclusive=True)

    def one_validated(self, iid: str, count: int, *, conclusive: bool, skipped: str = "") -> None:
        was = self.state(iid)
        told = ended(iid, count, conclusive=conclusive, skipped=skipped)
        self.fleet.upkeep.validated(told, process_start=2000.0, now=self.now)
        if was is DrainState.VALIDATING and not self.held and conclusive and proved(told):
            self.out.discard(iid)
            assert self.fleet.upkeep.why_out(iid) == ""
        elif was is DrainState.VALIDATING:
            assert self.fleet.upkeep.why_out(iid)

    # --- everything else -------------------------------------------------------------------------

    def step(self, evidence: Evidence) -> None:
        before = self.fleet.standing(self.now).ejected
        super().step(evidence)
        if self.policy == "whole_wave" and set(self.fleet.standing(self.now).ejected) - set(before):
            self.held = True

    def heard(self, effects: Iterable[Effect]) -> None:
        """An identity that is owed too long, or another than the owner before accepted, holds the fleet."""
        told = {one.kind for one in effects if isinstance(one, Told)}
        if self.contract is not None and "wave_required" in told:
            self.held = True

    @rule()
    def a_cohort_is_good(self) -> None:
        self.step(CohortProved(tuple(Validated(iid, WELL[-2:]) for iid in IIDS)))

    @rule(seconds=st.sampled_from((0.5, 40.0, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(cautious=st.booleans())
    def another_owner(self, cautious: bool) -> None:
        state = self.fleet.export(self.now)
        document = replace(
            handoff_document(p0="prefill", p1="prefill", d0="decode", d1="decode"),
            ejected=state.ejected,
            lifecycle=state.lifecycle,
            inference_sources=state.inference_sources,
        )
        self.taken_over = self.held
        self.fleet = self.new_fleet()
        self.fleet.restore(document, self.now, opening=Opening(cautious=cautious))
        if self.contract is not None:
            # A document without the process of an engine that may take requests is one that does not fit.
            self.held = self.held or self.fleet.upkeep.wave.state is WaveState.REQUIRED
        self.ready.clear()
        assert all(self.state(iid) is not DrainState.VALIDATING for iid in IIDS)

    # --- always ----------------------------------------------------------------------------------

    @invariant()
    def a_held_fleet_takes_nothing_and_says_why(self) -> None:
        self.fleet.check_invariants()
        upkeep = self.fleet.upkeep
        assert bool(upkeep.wave.reason) == self.held
        assert upkeep.wave.wave_id == self.on
        assert upkeep.drains.out() == self.out
        available = set(self.fleet.available(self.now))
        assert not available & (set(IIDS) if self.held else self.out)
        self.taken_over = self.taken_over and self.held
        if self.held:
            assert self.fleet.reserve_prefill(Demand(1, 1), self.now) is None
            self.work_in_hand_is_finished()

    def work_in_hand_is_finished(self) -> None:
        """Where an engine was before and has not been seen without work; nowhere after another owner."""
        place = self.fleet.reserve_decode(Demand(1, 1), self.now, producer="p0")
        if place is not None:
            assert not self.taken_over
            assert place.iid not in self.ready | set(self.fleet.standing(self.now).ejected)
            assert self.state(place.iid) not in (DrainState.VALIDATING, DrainState.BLOCKED)
            self.fleet.release(place, self.now)

    @invariant()
    def a_wave_is_all_or_nothing(self) -> None:
        members = {record.iid for record in self.fleet.upkeep.drains.records() if record.wave_id is not None}
        assert members == (set(IIDS) if self.on else set())
        view = self.fleet.upkeep.view()
        assert view.ready_to_stop == (self.on is not None and self.ready == set(IIDS))

    @invariant()
    def under_whole_wave_an_ejected_engine_holds_all(self) -> None:
        if self.policy == "whole_wave" and self.fleet.standing(self.now).ejected:
            assert self.fleet.upkeep.wave.state is not WaveState.OFF


TestWaves = Waves.TestCase
TestWaves.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
