"""Orders to drain and readmit, against a whole fleet: what is refused, and who takes requests after."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from narwhal.model.effect import Effect, ProbeWanted, Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    FailureClass,
    LegFailed,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.maintenance import Captured, DrainOrder, DrainState, WorkLeft
from narwhal.model.placement import Demand
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ORDER
from narwhal.policy.travel import Opening
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

NOW = 100.0
DEADLINE = 1_800_000_300.0
PASSED = tuple(Check(name, "passed") for name in ORDER)


def order(*engines: str, deadline_s: float = 300.0) -> DrainOrder:
    return DrainOrder(engines, deadline_s=deadline_s)


def drained(fleet: Fleet, iid: str) -> Fleet:
    fleet.upkeep.drain(iid, deadline_at=DEADLINE)
    fleet.upkeep.captured(iid, Captured(10.0, "0.11.0"))
    return fleet


def kinds(effects: tuple[Effect, ...]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, Told)]


def test_a_drained_engine_takes_no_request_and_the_others_do() -> None:
    fleet = fleet_of("p0 p1 d0 d1")
    effects = fleet.upkeep.drain("d0", deadline_at=DEADLINE)
    assert kinds(effects) == ["drain"]
    assert fleet.available(NOW) == ("d1", "p0", "p1")
    reservation = fleet.reserve_decode(Demand(10, 10), NOW, producer="p0")
    assert reservation is not None
    assert reservation.iid == "d1"


def test_resident_work_stays_when_its_engine_is_drained() -> None:
    fleet = fleet_of("p0 d0 d1")
    reservation = fleet.reserve_decode(Demand(10, 10), NOW, producer="p0")
    assert reservation is not None
    drained(fleet, reservation.iid)
    assert fleet.resident()[reservation.iid].decode == 1
    fleet.release(reservation, NOW)
    fleet.check_invariants()


def test_several_are_drained_one_after_another_as_long_as_each_role_keeps_one() -> None:
    fleet = fleet_of("p0 p1 p2 d0", pinned="p0 p1 p2 d0")
    assert fleet.upkeep.orders.refuses_drain(order("p0"), NOW) == ""
    drained(fleet, "p0")
    assert fleet.upkeep.orders.refuses_drain(order("p1"), NOW) == ""
    drained(fleet, "p1")
    assert "p2 cannot be drained: no other engine" in fleet.upkeep.orders.refuses_drain(order("p2"), NOW)


def test_unpinned_engines_of_the_other_role_count() -> None:
    assert "cannot be drained" in fleet_of("p0 p1 d0", pinned="p0 p1 d0").upkeep.orders.refuses_drain(
        order("d0"), NOW
    )
    assert fleet_of("p0 p1 d0", pinned="d0").upkeep.orders.refuses_drain(order("d0"), NOW) == ""


def test_engines_that_are_out_do_not_count() -> None:
    fleet = fleet_of("p0 d0 d1", pinned="p0 d0 d1")
    fleet.standings.eject("d1", "it refused", now=NOW)
    assert "d0 cannot be drained" in fleet.upkeep.orders.refuses_drain(order("d0"), NOW)
    assert fleet.upkeep.orders.refuses_drain(order("d1"), NOW) == "", "nothing is taken from anybody"


@pytest.mark.parametrize("contract", [None, {"vllm_version": "0.32.0"}])
def test_who_is_not_verified_yet_counts_as_one_that_serves(contract: dict[str, str] | None) -> None:
    fleet = fleet_of("p0 d0 d1 d2", pinned="p0 d0 d1 d2", contract=contract)
    document = handoff_document(p0="prefill", d0="decode", d1="decode", d2="decode")
    document = replace(document, model="tiny", ejected=("d2",), lifecycle={"process_starts": {"p0": 1.0}})
    fleet.restore(document, NOW, opening=Opening(cautious=True, verify=True, compare=False))
    assert fleet.available(NOW) == ()
    assert fleet.upkeep.orders.refuses_drain(order("d2"), NOW) == "", "ejected: nothing is taken from anybody"
    assert "p0 cannot be drained: no other engine" in fleet.upkeep.orders.refuses_drain(order("p0"), NOW)
    assert fleet.upkeep.orders.refuses_drain(order("d0"), NOW) == ""
    drained(fleet, "d0")
    assert fleet.upkeep.orders.refuses_drain(order("d0"), NOW) == "", "it is drained already"
    assert "d1 cannot be drained: no other engine" in fleet.upkeep.orders.refuses_drain(order("d1"), NOW)


def test_one_that_serves_is_not_taken_for_others_that_are_not_verified_yet() -> None:
    fleet = fleet_of("p0 d0 d1", pinned="p0 d0 d1")
    document = handoff_document(p0="prefill", d0="decode", d1="decode")
    fleet.restore(document, NOW, opening=Opening(cautious=True))
    fleet.standings.verified("d0")
    assert "d0 cannot be drained" in fleet.upkeep.orders.refuses_drain(order("d0"), NOW)
    assert fleet.upkeep.orders.refuses_drain(order("d1"), NOW) == "", "d0 is left"


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (order(), "engines is empty"),
        (order("e9"), "e9 is no engine of this fleet; its engines are d0, d1, p0"),
        (order("d0", deadline_s=0.0), "deadline_s must be above 0"),
        (order("d0", deadline_s=-1.0), "deadline_s must be above 0"),
        (order("d0", deadline_s=inf), "deadline_s must be above 0, 604800 at most, not inf"),
        (order("d0", deadline_s=nan), "deadline_s must be above 0, 604800 at most, not nan"),
        (order("d0", deadline_s=604801.0), "deadline_s must be above 0, 604800 at most, not 604801"),
        (order("d0", deadline_s=1e308), "deadline_s must be above 0, 604800 at most, not 1e+308"),
        (order("d0", "d1"), "2 engines are neither one nor the whole fleet"),
        (DrainOrder((), wave=True, deadline_s=0.0), "deadline_s must be above 0"),
    ],
)
def test_an_unsafe_drain_is_refused_with_a_sentence(wanted: DrainOrder, sentence: str) -> None:
    assert sentence in fleet_of("p0 d0 d1").upkeep.orders.refuses_drain(wanted, NOW)


def test_single_engines_are_not_for_orders_under_whole_wave() -> None:
    fleet = fleet_of("p0 d0 d1", engine_restart_policy="whole_wave")
    assert "engine_restart_policy is whole_wave" in fleet.upkeep.orders.refuses_drain(order("d0"), NOW)


def test_who_wants_an_ejected_engine_back_is_told_why_it_is_out() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.standings.eject("d0", "3 connection failures", now=NOW)
    assert fleet.upkeep.orders.refuses_readmit(order("d0")) == (
        "d0 is not drained: there is nothing to readmit (it is ejected: 3 connection failures); mend that: "
        "it comes back by itself when its checks pass"
    )


def test_only_a_drained_engine_is_readmitted() -> None:
    fleet = fleet_of("p0 d0 d1")
    assert "d0 is not drained" in fleet.upkeep.orders.refuses_readmit(order("d0"))
    assert fleet.upkeep.orders.refuses_readmit(order("d0")) and drained(fleet, "d0")
    assert fleet.upkeep.orders.refuses_readmit(order("d0")) == ""
    assert "engines is empty" in fleet.upkeep.orders.refuses_readmit(order())


def test_what_is_seen_of_a_drained_engine_moves_nothing() -> None:
    fleet = fleet_of("p0 d0 d1", liveness_misses=1)
    fleet.step(LegFailed("d0", Leg.DECODE, FailureClass.STREAM, "way", "it broke"), NOW)
    drained(fleet, "d0")
    effects = [fleet.step(LivenessSwept("d0", ProbeOutcome.BAD, "stopped"), NOW) for _ in range(5)]
    effects += [
        fleet.step(LegFailed("d0", Leg.DECODE, failure, "way", "it broke"), NOW)
        for failure in (FailureClass.CONNECTION, FailureClass.STREAM)
        for _ in range(5)
    ]
    assert [told for told in effects if told] == []
    assert fleet.standing(NOW).ejected == ()
    assert [one for one in fleet.tick(NOW + 1000) if isinstance(one, ProbeWanted)] == []


def test_a_hold_ends_with_the_drain_and_does_not_come_back() -> None:
    fleet = fleet_of("p0 d0 d1")
    for _ in range(3):
        fleet.step(LegFailed("d0", Leg.DECODE, FailureClass.STREAM, "way", "it broke"), NOW)
    assert "d0" in fleet.standing(NOW).holds
    assert kinds(fleet.upkeep.drain("d0", deadline_at=DEADLINE)) == ["drain", "hold_ended"]
    assert fleet.standing(NOW).holds == {}
    assert fleet.standing(NOW).verifying == ()


def test_an_automatic_readmission_never_brings_a_drained_engine_back() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.standings.eject("d0", "it refused", now=NOW)
    drained(fleet, "d0")
    assert fleet.step(Validated("d0", PASSED), NOW) == ()
    assert not fleet.eligible("d0", NOW)
    assert fleet.standing(NOW).ejected == ("d0",)


def readmit(fleet: Fleet, told: Validated) -> tuple[Effect, ...]:
    fleet.upkeep.drains.begin(told.iid)
    return fleet.upkeep.validated(told, process_start=20.0, now=NOW)


def test_a_readmission_ends_the_ejection_too_and_the_past_is_forgotten() -> None:
    fleet = fleet_of("p0 d0 d1")
    for _ in range(3):
        fleet.step(LegFailed("d0", Leg.DECODE, FailureClass.CONNECTION, "way", "it refused"), NOW)
    drained(fleet, "d0")
    assert kinds(readmit(fleet, Validated("d0", PASSED))) == ["readmission"]
    assert fleet.eligible("d0", NOW)
    assert (fleet.standing(NOW).ejected, fleet.standing(NOW).failures) == ((), {})
    assert fleet.export(NOW).lifecycle["records"] == []
    assert fleet.export(NOW).lifecycle["process_starts"] == {"d0": 20.0}


def test_a_failed_check_blocks_it_with_a_sentence_that_names_engine_check_and_way_out() -> None:
    fleet = drained(fleet_of("p0 d0 d1"), "d0")
    checks = (*PASSED[:2], Check("process", "failed", "it is the same process"))
    assert kinds(readmit(fleet, Validated("d0", checks))) == ["readmission_failed"]
    record = fleet.upkeep.drains.record("d0")
    assert record.state is DrainState.BLOCKED
    assert record.error == (
        "d0 stays out: the check process failed (it is the same process); mend that and readmit it again"
    )
    assert not fleet.eligible("d0", NOW)


def test_a_drain_of_one_that_is_being_validated_is_told_and_keeps_it_out() -> None:
    fleet = drained(fleet_of("p0 d0 d1"), "d0")
    fleet.upkeep.drains.begin("d0")
    assert kinds(fleet.upkeep.drain("d0", deadline_at=DEADLINE)) == ["drain"]
    assert fleet.upkeep.taken("d0"), "the rest of its checks sends nothing there"
    assert fleet.upkeep.validated(Validated("d0", PASSED), process_start=20.0, now=NOW) == ()
    assert not fleet.eligible("d0", NOW)
    assert fleet.upkeep.why_out("d0") == (
        "d0 stays out: its readmission was interrupted, by a drain or a change of owner; readmit it again"
    )


def test_nobody_is_back_while_the_fleet_is_held() -> None:
    fleet = drained(fleet_of("p0 d0 d1"), "d0")
    fleet.upkeep.drains.begin("d0")
    fleet.upkeep.require_wave("d1 was ejected")
    effects = fleet.upkeep.validated(Validated("d0", PASSED), process_start=20.0, now=NOW)
    assert kinds(effects) == ["readmission_failed"]
    sentence = "d0 stays out with the whole fleet, which needs a wave (d1 was ejected): drain the wave"
    assert fleet.upkeep.why_out("d0") == fleet.upkeep.drains.record("d0").error == sentence
    assert fleet.upkeep.drains.record("d0").checks == PASSED
    fleet.check_invariants()


def test_one_that_is_back_is_out_again_when_the_fleet_is_held_at_once() -> None:
    fleet = drained(fleet_of("p0 d0 d1"), "d0")
    readmit(fleet, Validated("d0", PASSED))
    assert fleet.upkeep.why_out("d0") == ""
    fleet.upkeep.require_wave("d1 was ejected")
    assert fleet.upkeep.why_out("d0").startswith("d0 stays out with the whole fleet, which needs a wave")


def test_a_check_that_could_not_be_made_is_named_with_the_cause() -> None:
    fleet = drained(fleet_of("p0 d0 d1"), "d0")
    why = "the check kv_transfer could not be made (p0 -> d0: status 500)"
    readmit(fleet, Validated("d0", PASSED[:5], conclusive=False, why=why))
    assert fleet.upkeep.drains.record("d0").error == f"d0 stays out: {why}; readmit it again"


@pytest.mark.parametrize("checks", [(), PASSED[:2], PASSED[:6], PASSED])
def test_checks_that_could_not_be_finished_block_it(checks: tuple[Check, ...]) -> None:
    fleet = drained(fleet_of("p0 d0 d1"), "d0")
    readmit(fleet, Validated("d0", checks, conclusive=False))
    assert "could not be finished" in fleet.upkeep.drains.record("d0").error
    assert not fleet.eligible("d0", NOW)


def test_what_travels_keeps_the_engine_out_for_the_next_owner() -> None:
    before = drained(fleet_of("p0 d0 d1"), "d0")
    before.upkeep.settle("d0", WorkLeft(0, 0, 0, 0, 0))
    lifecycle = before.export(NOW).lifecycle
    document = handoff_document(p0="prefill", d0="decode", d1="decode")
    # The owner before held it too: a drain is more than a hold.
    after = fleet_of("p0 d0 d1")
    after.restore(replace(document, lifecycle=lifecycle, inference_sources={"d0": ("p0",)}), NOW)
    assert after.available(NOW) == ("d1", "p0")
    assert after.standing(NOW).holds == {}
    (row,) = after.export(NOW).lifecycle["records"]
    assert (row["engine"], row["state"], row["old_process_start"]) == ("d0", "drained", 10.0)
    assert row["ready_to_stop"] is False
