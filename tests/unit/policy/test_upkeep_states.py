"""Any order of drains, looks, validations, takeovers, evidence: no way into placement without every check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    Validated,
)
from narwhal.model.maintenance import Captured, DrainOrder, DrainState, WorkLeft
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
    legs_left,
    skipped,
    starts,
    without,
)
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of


def new_fleet(contract: dict[str, Any] | None) -> Fleet:
    return fleet_of(
        " ".join(IIDS), pinned="d1", contract=contract, failure_quarantine_s=5.0, liveness_misses=2
    )


class Upkeep(MaintainedFleet):
    """`out`: drained and not brought back by every check, as the model knows it from what it ordered."""

    def __init__(self) -> None:
        super().__init__()
        self.contract: dict[str, Any] | None = None
        self.fleet = new_fleet(None)
        self.out: set[str] = set()
        self.captured: dict[str, float] = {}
        self.ready: set[str] = set()
        self.deadline_at: dict[str, float] = {}

    @initialize(contract=contracts)
    def begin_with(self, contract: dict[str, Any] | None) -> None:
        self.contract = contract
        self.fleet = new_fleet(contract)
        self.all_are_identified()

    # --- orders ----------------------------------------------------------------------------------

    @rule(iid=iids, deadline_s=st.sampled_from((1.0, 50.0)))
    def drain(self, iid: str, deadline_s: float) -> None:
        could = [leg for leg in (Leg.PREFILL, Leg.DECODE) if self.fleet.can_serve(leg, self.now)]
        had = legs_left(self.fleet)
        if self.fleet.upkeep.orders.refuses_drain(DrainOrder((iid,), deadline_s=deadline_s), self.now):
            return
        self.fleet.upkeep.drain(iid, deadline_at=self.now + deadline_s)
        if iid not in self.out:
            self.captured.pop(iid, None)
            self.deadline_at[iid] = self.now + deadline_s
        self.out.add(iid)
        assert self.state(iid) is not DrainState.VALIDATING
        assert all(self.fleet.can_serve(leg, self.now) for leg in could), "a leg lost its last engine"
        assert legs_left(self.fleet) >= had, "and nobody will serve it when checks are in"

    @rule(iid=iids)
    def capture(self, iid: str) -> None:
        if iid in self.out:
            self.captured.setdefault(iid, self.now)
            self.fleet.upkeep.captured(iid, Captured(self.now, "0.11.0"))

    @rule(iid=iids, left=st.sampled_from((0, 0, 1)))
    def look(self, iid: str, left: int) -> None:
        if self.fleet.upkeep.settle(iid, WorkLeft(0, left, 0, 0, 0)):
            assert left == 0
            assert iid in self.out & set(self.captured)
            self.ready.add(iid)

    @rule(iid=iids)
    def begin(self, iid: str) -> None:
        if not self.fleet.upkeep.orders.refuses_readmit(DrainOrder((iid,))) and (
            self.state(iid) is not DrainState.VALIDATING
        ):
            self.fleet.upkeep.drains.begin(iid)
            self.ready.discard(iid)

    @rule(
        iid=iids, passed=st.integers(0, len(ORDER)), conclusive=st.booleans(), skipped=skipped, start=starts
    )
    def validated(self, iid: str, passed: int, conclusive: bool, skipped: str, start: float) -> None:
        """The check after those that passed failed, or could not be made."""
        checks = [*without(WELL[:passed], skipped)]
        if conclusive and passed < len(ORDER):
            checks.append(Check(ORDER[passed], "failed", "it broke"))
        was = self.state(iid)
        told = Validated(iid, tuple(checks), conclusive=conclusive)
        self.fleet.upkeep.validated(told, process_start=start, now=self.now)
        proved = conclusive and passed == len(ORDER) and skipped in MAY_BE_SKIPPED
        if was is DrainState.VALIDATING and proved:
            self.out.discard(iid)
            held = self.fleet.identification.awaiting or self.fleet.upkeep.wave.reason
            assert held or self.fleet.eligible(iid, self.now), "every check passed"

    # --- everything else -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.5, 6.0, 40.0)))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(cautious=st.booleans())
    def another_owner(self, cautious: bool) -> None:
        state = self.fleet.export(self.now)
        document = replace(
            handoff_document(p0="prefill", p1="prefill", d0="decode", d1="decode"),
            ejected=state.ejected,
            lifecycle=state.lifecycle,
            holds=state.holds,
            streaks=state.streaks,
            inference_sources=state.inference_sources,
        )
        validating = {iid for iid in IIDS if self.state(iid) is DrainState.VALIDATING}
        self.fleet = new_fleet(self.contract)
        self.fleet.restore(document, self.now, opening=Opening(cautious=cautious))
        self.ready.clear()
        assert all(self.state(iid) is DrainState.BLOCKED for iid in validating)

    # --- always ----------------------------------------------------------------------------------

    @invariant()
    def who_is_drained_takes_nothing(self) -> None:
        drains = self.fleet.upkeep.drains
        drains.check_invariants()
        assert drains.out() == self.out
        assert self.out.isdisjoint(self.fleet.available(self.now))
        prefill = self.fleet.reserve_prefill(Demand(1, 1), self.now)
        decode = self.fleet.reserve_decode(Demand(1, 1), self.now, producer="p0")
        for reservation in (prefill, decode):
            if reservation is not None:
                self.fleet.release(reservation, self.now)
        assert prefill is None or prefill.iid not in self.out
        if decode is not None and decode.iid in self.out:
            # What it prefilled before it was drained, where nobody else can.
            assert decode.iid == "p0"
            assert not self.fleet.can_serve(Leg.DECODE, self.now)
            assert decode.iid not in self.ready

    @invariant()
    def the_process_on_record_is_the_one_that_was_drained(self) -> None:
        for iid in self.out:
            captured = self.fleet.upkeep.drains.record(iid).captured
            assert (captured.process_start if captured else None) == self.captured.get(iid)

    @invariant()
    def nobody_is_ready_to_stop_unless_it_was_seen_without_work(self) -> None:
        ready = {record.iid for record in self.fleet.upkeep.drains.records() if record.ready_to_stop}
        assert ready == self.ready & self.out


TestUpkeep = Upkeep.TestCase
TestUpkeep.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
