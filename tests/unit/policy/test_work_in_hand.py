"""What a drain found in hand: where the decode of a prefill goes that was placed before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.maintenance import Captured, DrainState, WorkLeft
from narwhal.model.placement import Demand
from narwhal.policy.fleet import Fleet
from narwhal.policy.travel import Opening
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

NOW = 100.0
DEADLINE = 1_800_000_300.0
NONE_LEFT = WorkLeft(0, 0, 0, 0, 0)
ALL_PINNED = "p0 d0 d1"


def decodes(fleet: Fleet, producer: str = "p0") -> str | None:
    """Where a decode of that producer's KV goes now."""
    place = fleet.reserve_decode(Demand(10, 10), NOW, producer=producer)
    if place is None:
        return None
    fleet.release(place, NOW)
    fleet.check_invariants()
    return place.iid


def prefills(fleet: Fleet) -> str | None:
    place = fleet.reserve_prefill(Demand(10, 10), NOW)
    return place.iid if place else None


def settle(fleet: Fleet, *iids: str) -> None:
    for iid in iids:
        fleet.upkeep.captured(iid, Captured(10.0, "0.11.0"))
        fleet.upkeep.settle(iid, NONE_LEFT)


# --- the whole fleet is held -------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", ["", ALL_PINNED])
def test_in_a_wave_a_decode_goes_where_it_would_have_gone(pinned: str) -> None:
    fleet = fleet_of("p0 d0 d1", pinned=pinned)
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    assert decodes(fleet) in ("d0", "d1")
    assert prefills(fleet) is None
    assert fleet.available(NOW) == ()
    assert fleet.sizer(NOW) is None


def test_a_fleet_of_one_finishes_on_the_producer() -> None:
    fleet = fleet_of("p0")
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    assert decodes(fleet) == "p0"


def test_the_deadline_of_a_wave_ends_nothing() -> None:
    fleet = fleet_of("p0 d0")
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    fleet.upkeep.expire(DEADLINE + 1.0)
    assert decodes(fleet) == "d0"


def test_a_member_that_may_be_stopped_takes_nothing_and_the_others_do() -> None:
    fleet = fleet_of("p0 d0 d1", pinned=ALL_PINNED)
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    settle(fleet, "d0")
    assert decodes(fleet) == "d1"
    settle(fleet, "d1")
    assert decodes(fleet) is None


def test_nothing_goes_to_a_member_whose_readmission_has_begun_or_failed() -> None:
    fleet = fleet_of("p0 d0")
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    fleet.upkeep.begin_wave()
    assert decodes(fleet) is None
    fleet.upkeep.wave_validated({}, process_starts={}, now=NOW)
    assert decodes(fleet) is None
    fleet.upkeep.begin_wave()
    fleet.upkeep.drain_wave("w2", deadline_at=DEADLINE)
    assert fleet.upkeep.drains.record("d0").state is DrainState.DRAINING
    assert decodes(fleet) is None, "it may be another process by now"


def test_an_ejection_that_holds_the_fleet_ends_no_work_but_its_own() -> None:
    fleet = fleet_of("p0 d0 d1", engine_restart_policy="whole_wave")
    fleet.standings.eject("d0", "it refused", now=NOW)
    assert fleet.upkeep.wave.reason.startswith("whole-wave restart required")
    assert decodes(fleet) == "d1"
    assert prefills(fleet) is None
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    assert decodes(fleet) == "d1", "the wave that follows is drained before that work is done"


def test_who_was_held_for_a_probe_is_not_trusted_because_the_fleet_is_drained() -> None:
    fleet = fleet_of("p0 d0 d1", pinned=ALL_PINNED)
    fleet.standings.hold("d0", "suspected", now=NOW)
    fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    assert decodes(fleet) == "d1"
    settle(fleet, "d1")
    assert decodes(fleet) is None


def test_engines_that_owe_a_health_check_or_an_identity_take_nothing_in_a_wave_either() -> None:
    roles = {"p0": "prefill", "d0": "decode"}
    cautious = fleet_of("p0 d0")
    cautious.restore(handoff_document(**roles), NOW, opening=Opening(cautious=True))
    awaiting = fleet_of("p0 d0", contract={"vllm_version": "0.32.0"})
    assert awaiting.standings.barred
    for fleet in (cautious, awaiting):
        fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
        assert decodes(fleet) is None


def test_a_wave_that_another_owner_drained_is_no_place_and_our_own_is_after_a_lost_lease() -> None:
    """An owner that loses the lease and has it again restores what it wrote itself."""
    ours, other = fleet_of("p0 d0"), fleet_of("p0 d0")
    ours.upkeep.drain_wave("w1", deadline_at=DEADLINE)
    document = handoff_document(p0="prefill", d0="decode")
    document = replace(document, lifecycle=ours.export(NOW).lifecycle)
    for fleet in (ours, other):
        fleet.restore(document, NOW)
        assert fleet.upkeep.wave.reason
    assert decodes(ours) == "d0"
    assert decodes(other) is None


# --- one engine is drained ---------------------------------------------------------------------------


def test_a_drained_engine_gets_no_decode_of_another_while_somebody_serves() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.upkeep.drain("d0", deadline_at=DEADLINE)
    assert {decodes(fleet) for _ in range(4)} == {"d1"}
    assert decodes(fleet, "d0") == "d1"


def test_where_nobody_serves_any_more_a_drained_producer_decodes_what_it_prefilled_and_nothing_else() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.upkeep.drain("p0", deadline_at=DEADLINE)
    for iid in ("d0", "d1"):
        fleet.standings.eject(iid, "it refused", now=NOW)
    assert decodes(fleet) == "p0"
    assert decodes(fleet, "d0") is None
    assert prefills(fleet) is None
    settle(fleet, "p0")
    assert decodes(fleet) is None


def test_a_pinned_producer_that_is_drained_decodes_nothing() -> None:
    fleet = fleet_of("p0 p1 d0", pinned="p0 p1 d0")
    fleet.upkeep.drain("p0", deadline_at=DEADLINE)
    fleet.standings.eject("d0", "it refused", now=NOW)
    assert decodes(fleet) is None


def test_a_readmitted_engine_that_is_ejected_is_no_place_for_old_work() -> None:
    fleet = fleet_of("p0 d0")
    fleet.upkeep.drain("p0", deadline_at=DEADLINE)
    fleet.standings.set_drained(frozenset())
    fleet.standings.eject("p0", "it refused", now=NOW)
    fleet.standings.eject("d0", "it refused", now=NOW)
    assert decodes(fleet) is None


def test_a_hold_of_the_whole_fleet_brings_a_drained_engine_no_work_of_others() -> None:
    fleet = fleet_of("p0 d0 d1", engine_restart_policy="whole_wave", pinned=ALL_PINNED)
    fleet.upkeep.drain("d0", deadline_at=DEADLINE)
    fleet.standings.eject("p0", "it refused", now=NOW)
    assert fleet.upkeep.wave.reason
    assert {decodes(fleet) for _ in range(4)} == {"d1"}
