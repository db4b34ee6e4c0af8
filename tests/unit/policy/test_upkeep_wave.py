"""Waves and the policy `whole_wave`, against a whole fleet: who takes requests, and what brings all back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from narwhal.model.effect import Effect, ProbeWanted, Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    FailureClass,
    Identified,
    IdentityOutcome,
    LegFailed,
    Validated,
)
from narwhal.model.maintenance import Captured, DrainOrder, DrainState, WaveState, WorkLeft
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ORDER
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

NOW = 100.0
DEADLINE = 1_800_000_300.0
IIDS = ("d0", "d1", "p0")
NONE_LEFT = WorkLeft(0, 0, 0, 0, 0)
PASSED = tuple(Check(name, "passed") for name in ORDER)
WAVE = DrainOrder((), wave=True)


def whole_wave() -> Fleet:
    return fleet_of("p0 d0 d1", engine_restart_policy="whole_wave")


def drained(fleet: Fleet, *, ready: bool = True) -> Fleet:
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    for iid in IIDS if ready else ():
        fleet.upkeep.captured(iid, Captured(10.0, "0.11.0"))
        fleet.upkeep.settle(iid, NONE_LEFT)
    return fleet


def kinds(effects: tuple[Effect, ...]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, Told)]


def readmit(fleet: Fleet, **ends: Validated) -> tuple[Effect, ...]:
    """Every check of every member passed, but for those named."""
    fleet.upkeep.begin_wave()
    told = {iid: ends.get(iid, Validated(iid, PASSED)) for iid in IIDS}
    return fleet.upkeep.wave_validated(told, process_starts=dict.fromkeys(IIDS, 20.0), now=NOW)


def states(fleet: Fleet) -> set[DrainState]:
    fleet.check_invariants()
    return {fleet.upkeep.drains.record(iid).state for iid in IIDS}


def rows(fleet: Fleet) -> Mapping[str, object]:
    return {row["engine"]: row["wave_id"] for row in fleet.export(NOW).lifecycle["records"]}


# --- a wave ------------------------------------------------------------------------------------------


def test_a_wave_takes_every_engine_and_is_told_once() -> None:
    fleet = fleet_of("p0 d0 d1")
    assert kinds(fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)) == ["wave_drain"]
    assert fleet.upkeep.drain_wave("w2", deadline_at=DEADLINE + 1) == ()
    assert fleet.available(NOW) == ()
    assert fleet.upkeep.wave.reason == "whole-wave drain w1"
    assert rows(fleet) == dict.fromkeys(IIDS, "w1")
    assert fleet.upkeep.drains.record("p0").deadline_at == DEADLINE + 1


@pytest.mark.parametrize("order", [WAVE, DrainOrder(("d1", "p0", "d0"))])
def test_all_engines_named_are_a_wave(order: DrainOrder) -> None:
    fleet = fleet_of("p0 d0 d1")
    assert fleet.upkeep.orders.is_wave(order)
    assert fleet.upkeep.orders.targets(order) == IIDS
    assert fleet.upkeep.orders.refuses_drain(order, NOW) == ""


def test_the_only_engine_of_a_fleet_is_the_whole_of_it() -> None:
    fleet = fleet_of("p0")
    assert fleet.upkeep.orders.is_wave(DrainOrder(("p0",)))
    assert fleet.upkeep.orders.refuses_drain(DrainOrder(("p0",)), NOW) == ""


def test_the_only_engine_that_was_drained_as_one_of_several_comes_back_alone() -> None:
    before = fleet_of("p0 d0")
    before.upkeep.drain("d0", deadline_at=DEADLINE)
    after = next_owner(before, fleet_of("d0"), roles="p0 d0")
    assert not after.upkeep.orders.is_wave(DrainOrder(("d0",)))
    assert after.upkeep.orders.refuses_readmit(DrainOrder(("d0",))) == ""
    assert after.upkeep.orders.is_wave(WAVE)


def test_who_is_out_gets_no_leg_but_for_its_own_readmission() -> None:
    fleet = fleet_of("p0 d0 d1")
    assert not fleet.upkeep.taken("d0")
    fleet.upkeep.require_wave("another model")
    assert all(fleet.upkeep.taken(iid) for iid in IIDS)
    drained(fleet)
    assert all(fleet.upkeep.taken(iid) for iid in IIDS)
    fleet.upkeep.begin_wave()
    assert not any(fleet.upkeep.taken(iid) for iid in IIDS)
    fleet.upkeep.wave_validated({}, process_starts={}, now=NOW)
    assert all(fleet.upkeep.taken(iid) for iid in IIDS)


def test_it_may_be_stopped_when_every_member_may() -> None:
    fleet = drained(fleet_of("p0 d0 d1"), ready=False)
    for iid in IIDS:
        assert not fleet.upkeep.view().ready_to_stop
        fleet.upkeep.captured(iid, Captured(10.0, "0.11.0"))
        effects = fleet.upkeep.settle(iid, NONE_LEFT)
    assert kinds(effects) == ["drained", "wave_drained"]
    assert fleet.upkeep.view().ready_to_stop


def test_who_was_drained_alone_is_a_member_too_and_keeps_its_process() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.upkeep.drain("d0", deadline_at=DEADLINE)
    fleet.upkeep.captured("d0", Captured(5.0, "0.11.0"))
    drained(fleet)
    assert rows(fleet) == dict.fromkeys(IIDS, "w1")
    assert fleet.upkeep.drains.record("d0").captured == Captured(5.0, "0.11.0")


def test_a_wave_ends_the_validation_of_one_engine() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.upkeep.drain("d0", deadline_at=DEADLINE)
    fleet.upkeep.captured("d0", Captured(5.0, "0.11.0"))
    fleet.upkeep.drains.begin("d0")
    drained(fleet)
    assert fleet.upkeep.validated(Validated("d0", PASSED), process_start=20.0, now=NOW) == ()
    fleet.upkeep.begin_wave()
    assert fleet.upkeep.validated(Validated("d0", PASSED), process_start=20.0, now=NOW) == ()
    assert fleet.available(NOW) == ()


def test_a_drain_of_a_wave_that_is_being_validated_ends_that_and_is_one() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    fleet.upkeep.begin_wave()
    effects = fleet.upkeep.drain_wave("w2", deadline_at=DEADLINE + 60)
    assert kinds(effects) == ["wave_drain"]
    assert (states(fleet), fleet.upkeep.wave.reason) == ({DrainState.DRAINING}, "whole-wave drain w1")
    assert fleet.upkeep.wave_validated({}, process_starts={}, now=NOW) == ()
    assert fleet.upkeep.why_out(None) == (
        "the wave stays out: its readmission was interrupted, by a drain or a change of owner; "
        "readmit the wave again"
    )
    for iid in IIDS:
        fleet.upkeep.settle(iid, NONE_LEFT)
    assert fleet.upkeep.view().ready_to_stop
    readmit(fleet)
    assert fleet.available(NOW) == IIDS


def test_a_drain_of_a_blocked_wave_changes_nothing() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    readmit(fleet, d1=Validated("d1", (Check("health", "failed", "refused"),)))
    error = fleet.upkeep.wave.error
    assert fleet.upkeep.drain_wave("w2", deadline_at=DEADLINE) == ()
    assert (states(fleet), fleet.upkeep.wave.error) == ({DrainState.BLOCKED}, error)


def test_a_fleet_that_is_held_anew_is_not_told_to_be_back() -> None:
    fleet = drained(whole_wave())
    readmit(fleet)
    assert fleet.upkeep.why_out(None) == ""
    fleet.standings.eject("d0", "it refused", now=NOW)
    assert fleet.upkeep.why_out(None) == (
        "the whole fleet stays out and needs a wave (d0 was ejected): drain the wave"
    )


def test_the_member_whose_check_could_not_be_made_is_the_reason() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    kept = Validated("d0", PASSED[:5], conclusive=False)
    why = "the check generation could not be made (our pool is full)"
    readmit(fleet, d0=kept, p0=Validated("p0", PASSED[:4], conclusive=False, why=why))
    sentence = f"p0 stays out: {why}; readmit the wave again"
    assert fleet.upkeep.wave.error == fleet.upkeep.drains.record("p0").error == sentence
    assert fleet.upkeep.drains.record("d0").error == f"d0 stays out with its wave: {sentence}"


def test_a_member_does_not_come_back_alone() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    why = fleet.upkeep.orders.refuses_readmit(DrainOrder(("d0",)))
    assert why == "d0 is a member of the wave w1: readmit the whole wave"


@pytest.mark.parametrize(
    ("alone", "sentence"), [(False, "there is nothing to readmit"), (True, "readmit the engines that are")]
)
def test_only_a_drained_wave_is_readmitted(alone: bool, sentence: str) -> None:
    fleet = fleet_of("p0 d0 d1")
    if alone:
        fleet.upkeep.drain("d0", deadline_at=DEADLINE)
    assert sentence in fleet.upkeep.orders.refuses_readmit(WAVE)
    assert fleet.upkeep.orders.refuses_readmit(WAVE).startswith("no wave is drained")


def test_all_come_back_in_one_change() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    assert kinds(readmit(fleet)) == ["wave_completed", *["readmission"] * 3]
    assert fleet.available(NOW) == IIDS
    assert (states(fleet), fleet.upkeep.wave.reason) == ({DrainState.ACTIVE}, "")
    lifecycle = fleet.export(NOW).lifecycle
    assert (lifecycle["wave"], lifecycle["records"]) == (None, [])
    assert lifecycle["process_starts"] == dict.fromkeys(IIDS, 20.0)


@pytest.mark.parametrize("name", ORDER)
def test_one_failed_check_keeps_all_out_with_its_name(name: str) -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    failed = Validated("d1", (*PASSED[: ORDER.index(name)], Check(name, "failed", "it broke")))
    assert kinds(readmit(fleet, d1=failed)) == ["readmission_failed", "wave_blocked"]
    sentence = f"d1 stays out: the check {name} failed (it broke); mend that and readmit the wave again"
    assert fleet.upkeep.wave.error == fleet.upkeep.drains.record("d1").error == sentence
    assert fleet.upkeep.drains.record("p0").error == f"p0 stays out with its wave: {sentence}"
    assert (states(fleet), fleet.available(NOW)) == ({DrainState.BLOCKED}, ())
    assert fleet.upkeep.wave.reason == "whole-wave recovery w1"
    readmit(fleet)
    assert fleet.available(NOW) == IIDS


def test_whom_another_kept_from_its_checks_is_not_the_reason() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    unfinished = Validated("d0", PASSED[:5], conclusive=False)
    failed = Validated("p0", (*PASSED[:3], Check("process", "failed", "not newer")))
    readmit(fleet, d0=unfinished, p0=failed)
    assert fleet.upkeep.wave.error.startswith("p0 stays out: the check process failed")


@pytest.mark.parametrize("checks", [(), PASSED[:6], PASSED])
def test_a_member_that_could_not_be_looked_at_keeps_all_out(checks: tuple[Check, ...]) -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    readmit(fleet, d0=Validated("d0", checks, conclusive=False))
    assert "d0 stays out: the checks could not be finished" in fleet.upkeep.wave.error
    assert fleet.available(NOW) == ()


def test_a_process_check_that_was_skipped_brings_nobody_back() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    skipped = tuple(replace(one, outcome="skipped") if one.name == "process" else one for one in PASSED)
    readmit(fleet, d0=Validated("d0", skipped))
    assert fleet.available(NOW) == ()


def test_a_member_that_is_missing_keeps_all_out() -> None:
    fleet = drained(fleet_of("p0 d0 d1"))
    fleet.upkeep.begin_wave()
    fleet.upkeep.wave_validated({"p0": Validated("p0", PASSED)}, process_starts={}, now=NOW)
    assert (states(fleet), fleet.available(NOW)) == ({DrainState.BLOCKED}, ())


# --- whole_wave --------------------------------------------------------------------------------------


def test_an_ejection_holds_the_whole_fleet() -> None:
    fleet = whole_wave()
    leg = LegFailed("d0", Leg.DECODE, FailureClass.CONNECTION, "way", "it refused")
    effects = [effect for _ in range(3) for effect in fleet.step(leg, NOW)]
    assert kinds(tuple(effects)) == ["ejection", "wave_required"]
    assert fleet.available(NOW) == ()
    assert fleet.upkeep.wave.reason == "whole-wave restart required: d0 was ejected"
    view = fleet.upkeep.view()
    assert (view.wave_id, view.active, view.readiness_withdrawn) == (None, False, True)


def test_an_identity_that_failed_ejects_and_holds_the_whole_fleet() -> None:
    fleet = fleet_of("p0 d0 d1", engine_restart_policy="whole_wave", contract={"vllm_version": "0.31.0"})
    for iid in IIDS:
        fleet.step(Identified(iid, IdentityOutcome.LIKE, 10.0), NOW)
    assert fleet.available(NOW) == IIDS
    effects = fleet.step(Identified("d1", IdentityOutcome.UNLIKE, 10.0, "vllm_version is 0.32.0"), NOW)
    assert kinds(effects) == ["identity_failed", "ejection", "wave_required"]
    assert fleet.standing(NOW).ejected == ("d1",)
    assert fleet.available(NOW) == ()


def test_a_held_fleet_comes_back_by_nothing_but_a_wave() -> None:
    fleet = whole_wave()
    fleet.standings.eject("d0", "it refused", now=NOW)
    assert fleet.step(Validated("d0", PASSED), NOW) == ()
    assert [one for one in fleet.tick(NOW + 1000) if isinstance(one, ProbeWanted)] == []
    assert fleet.available(NOW + 1000) == ()
    why = fleet.upkeep.orders.refuses_readmit(WAVE)
    assert why == "no wave is drained, and the fleet needs one (d0 was ejected): drain the wave first"
    drained(fleet)
    readmit(fleet)
    assert fleet.available(NOW) == IIDS
    assert fleet.standing(NOW).ejected == ()


@pytest.mark.parametrize("held", [False, True])
def test_there_are_no_orders_for_single_engines(held: bool) -> None:
    fleet = whole_wave()
    if held:
        fleet.standings.eject("d0", "it refused", now=NOW)
    one = DrainOrder(("d0",))
    refused = (fleet.upkeep.orders.refuses_drain(one, NOW), fleet.upkeep.orders.refuses_readmit(one))
    assert refused == (
        "engine_restart_policy is whole_wave: drain the whole fleet as a wave",
        "engine_restart_policy is whole_wave: readmit the whole fleet as a wave",
    )


def test_where_restarts_are_individual_a_wave_may_be_required_too() -> None:
    fleet = fleet_of("p0 d0 d1")
    assert kinds(fleet.upkeep.require_wave("the saved state is of another model")) == ["wave_required"]
    assert "the fleet needs a wave" in fleet.upkeep.orders.refuses_drain(DrainOrder(("d0",)), NOW)
    assert fleet.available(NOW) == ()


def test_a_verdict_that_a_guard_withholds_holds_nobody() -> None:
    fleet = whole_wave()
    fleet.standings.eject("d1", "it refused", now=NOW)
    again = fleet_of("p0 d0", pinned="p0 d0", engine_restart_policy="whole_wave")
    assert kinds(again.standings.evict("d0", "slow", now=NOW)) == ["ejection"]
    assert again.available(NOW) == ("d0", "p0")


# --- what travels ------------------------------------------------------------------------------------


def next_owner(before: Fleet, after: Fleet, *, roles: str = "p0 d0 d1") -> Fleet:
    state = before.export(NOW)
    names = {iid: "prefill" if iid[0] == "p" else "decode" for iid in roles.split()}
    document = replace(handoff_document(**names), lifecycle=state.lifecycle, ejected=state.ejected)
    after.restore(document, NOW)
    after.check_invariants()
    return after


def test_a_wave_is_the_next_owners_too() -> None:
    after = next_owner(drained(fleet_of("p0 d0 d1")), fleet_of("p0 d0 d1"))
    assert after.upkeep.wave.reason == "whole-wave drain w1"
    assert (rows(after), after.available(NOW)) == (dict.fromkeys(IIDS, "w1"), ())
    assert not after.upkeep.view().ready_to_stop, "what the owner before still streams is looked at anew"
    readmit(after)
    assert after.available(NOW) == IIDS


def test_a_validation_of_the_owner_before_is_blocked() -> None:
    before = drained(fleet_of("p0 d0 d1"))
    before.upkeep.begin_wave()
    after = next_owner(before, fleet_of("p0 d0 d1"))
    assert (states(after), after.upkeep.wave.reason) == ({DrainState.BLOCKED}, "whole-wave recovery w1")
    told = {iid: Validated(iid, PASSED) for iid in IIDS}
    assert after.upkeep.wave_validated(told, process_starts={}, now=NOW) == ()
    assert after.available(NOW) == ()


def test_a_hold_of_the_whole_fleet_is_the_next_owners_too() -> None:
    before = whole_wave()
    before.standings.eject("d0", "it refused", now=NOW)
    after = next_owner(before, whole_wave())
    assert after.upkeep.wave.reason == "whole-wave restart required: d0 was ejected"
    assert after.available(NOW) == ()


def test_an_owner_with_the_policy_holds_for_an_ejection_of_one_without_it() -> None:
    before = fleet_of("p0 d0 d1")
    before.standings.eject("d0", "it refused", now=NOW)
    after = next_owner(before, whole_wave())
    assert after.upkeep.wave.state is WaveState.REQUIRED
    assert after.available(NOW) == ()


def test_an_engine_that_is_new_in_the_fleet_is_a_member_of_the_wave_that_is_on() -> None:
    after = next_owner(drained(fleet_of("p0 d0 d1")), fleet_of("p0 d0 d1 d2"))
    assert after.available(NOW) == ()
    assert after.upkeep.drains.record("d2").wave_id == "w1"
    assert after.upkeep.drains.record("d2").captured is None


@pytest.mark.parametrize("contract", [None, {"vllm_version": "0.11.0"}])
def test_a_member_that_is_gone_for_good_is_left_out_of_the_fleet_and_the_wave_goes_on(contract: Any) -> None:
    before, after = drained(fleet_of("p0 d0 d1", contract=contract)), fleet_of("p0 d0", contract=contract)
    state = before.export(NOW)
    names = {"p0": "prefill", "d0": "decode", "d1": "decode"}
    after.restore(replace(handoff_document(**names), lifecycle=state.lifecycle), NOW)
    after.check_invariants()
    assert after.upkeep.wave.reason == "whole-wave drain w1"
    after.upkeep.begin_wave()
    told = {iid: Validated(iid, PASSED) for iid in ("p0", "d0")}
    after.upkeep.wave_validated(told, process_starts=dict.fromkeys(told, 20.0), now=NOW)
    assert after.available(NOW) == ("d0", "p0")


def test_a_record_of_a_wave_that_is_none_is_one_of_its_engine_alone() -> None:
    before = drained(fleet_of("p0 d0 d1"))
    after = fleet_of("p0 d0 d1")
    lifecycle = {**before.export(NOW).lifecycle, "wave": None}
    names = {"p0": "prefill", "d0": "decode", "d1": "decode"}
    after.restore(replace(handoff_document(**names), lifecycle=lifecycle), NOW)
    after.check_invariants()
    assert after.upkeep.orders.refuses_readmit(DrainOrder(("d0",))) == ""
    assert after.available(NOW) == ()
