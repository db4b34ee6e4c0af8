"""Placement avoids edges that fail and relieves engines that ask for it, as long as others can serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.model.evidence import EdgeProbed, FailureClass, LegFailed, ProbeOutcome
from narwhal.model.placement import Demand, Reservation
from narwhal.policy.fleet import Fleet
from tests.support.settings import fleet_config, handoff_document, serving_settings

NOW = 100.0


def fleet_of(*names: str, pinned: bool = False) -> Fleet:
    specs = [
        EngineSpec(n, f"http://{n}", Role.PREFILL if n[0] == "p" else Role.DECODE, pin=pinned) for n in names
    ]
    return Fleet(fleet_config(*specs), {})


def avoid(fleet: Fleet, *edges: str) -> None:
    """Edges such as "p0 d0" are avoided from now on, and no others."""
    told = [dict(zip(("producer", "consumer"), edge.split(), strict=True)) for edge in edges]
    document = handoff_document(**{iid: role.value for iid, role in fleet.roles().items()})
    fleet.restore(replace(document, edges=told), NOW)


def busy(fleet: Fleet, iid: str, for_s: float = 5.0) -> None:
    detail = "overload:429"
    fleet.step(LegFailed(iid, Leg.PREFILL, FailureClass.OVERLOAD, detail, detail, retry_after_s=for_s), NOW)


def released(fleet: Fleet, reservation: Reservation | None) -> str:
    assert reservation is not None
    fleet.release(reservation, NOW)
    return reservation.iid


def prefills(fleet: Fleet, now: float = NOW, avoid: frozenset[str] = frozenset()) -> set[str]:
    return {released(fleet, fleet.reserve_prefill(Demand(10), now, avoid=avoid)) for _ in range(6)}


def decodes(fleet: Fleet, producer: str, avoid: frozenset[str] = frozenset()) -> set[str]:
    return {
        released(fleet, fleet.reserve_decode(Demand(10), NOW, producer=producer, avoid=avoid))
        for _ in range(6)
    }


# --- avoided edges ---


def test_a_consumer_behind_an_avoided_edge_gets_no_kv_of_that_producer() -> None:
    fleet = fleet_of("p0", "p1", "d0", "d1")
    avoid(fleet, "p0 d0")
    assert decodes(fleet, "p0") == {"d1"}
    assert decodes(fleet, "p1") == {"d0", "d1"}
    fleet.step(EdgeProbed("p0", "d0", ProbeOutcome.GOOD), NOW)
    assert decodes(fleet, "p0") == {"d0", "d1"}


def test_a_producer_that_reaches_no_consumer_makes_way_for_one_that_does() -> None:
    fleet = fleet_of("p0", "p1", "d0", "d1")
    avoid(fleet, "p0 d0")
    assert prefills(fleet) == {"p0", "p1"}
    avoid(fleet, "p0 d0", "p0 d1")
    assert prefills(fleet) == {"p1"}
    avoid(fleet, "p0 d0", "p0 d1", "p1 d0", "p1 d1")
    assert prefills(fleet) == {"p0", "p1"}, "nothing else is left"


def test_the_producer_decodes_its_own_kv_before_an_avoided_edge_is_used() -> None:
    fleet = fleet_of("p0", "d0")
    avoid(fleet, "p0 d0")
    assert prefills(fleet) == {"p0"}
    assert decodes(fleet, "p0") == {"p0"}


def test_an_avoided_edge_is_used_when_nothing_else_is_left() -> None:
    fleet = fleet_of("p0", "d0", pinned=True)
    avoid(fleet, "p0 d0")
    assert decodes(fleet, "p0") == {"d0"}
    unpinned = fleet_of("p0", "d0")
    avoid(unpinned, "p0 d0")
    assert decodes(unpinned, "p0", avoid=frozenset({"p0"})) == {"d0"}


def test_an_engine_that_failed_this_request_comes_after_an_avoided_edge() -> None:
    fleet = fleet_of("p0", "d0", "d1", pinned=True)
    avoid(fleet, "p0 d0")
    assert decodes(fleet, "p0", avoid=frozenset({"d1"})) == {"d0"}


def test_avoided_edges_travel_to_the_next_owner() -> None:
    fleet = fleet_of("p0", "d0", "d1")
    avoid(fleet, "p0 d0")
    state = fleet.export(NOW + 2)
    assert [(row["producer"], row["consumer"], row["age_s"]) for row in state.edges] == [("p0", "d0", 2.0)]
    other = fleet_of("p0", "d0", "d1")
    other.restore(replace(handoff_document(p0="prefill", d0="decode", d1="decode"), edges=state.edges), NOW)
    assert decodes(other, "p0") == {"d1"}


# --- back-pressure ---


def test_an_engine_that_asked_for_relief_is_used_only_when_no_other_is_left() -> None:
    fleet = fleet_of("p0", "p1", "d0")
    busy(fleet, "p0", for_s=5.0)
    assert prefills(fleet) == {"p1"}
    assert prefills(fleet, avoid=frozenset({"p1"})) == {"p0"}, "one that failed this request comes last"
    busy(fleet, "p1")
    assert prefills(fleet) == {"p0", "p1"}


def test_relief_ends_by_itself() -> None:
    fleet = fleet_of("p0", "p1", "d0")
    busy(fleet, "p0", for_s=5.0)
    assert prefills(fleet, now=NOW + 4.9) == {"p1"}
    assert "p0" in prefills(fleet, now=NOW + 5.0)


def test_decode_engines_are_relieved_too() -> None:
    fleet = fleet_of("p0", "d0", "d1")
    busy(fleet, "d0")
    assert decodes(fleet, "p0") == {"d1"}


# --- both at once ---


def test_relief_does_not_funnel_a_producers_kv_onto_the_consumer_that_asked_for_less() -> None:
    fleet = fleet_of("p0", "p1", "d0", "d1")
    avoid(fleet, "p1 d0")
    busy(fleet, "d1")
    assert prefills(fleet) == {"p0"}, "another pair is free"
    assert decodes(fleet, "p0") == {"d0"}
    assert decodes(fleet, "p1") == {"p1"}, "its own KV, before it burdens who asked for less"
    assert decodes(fleet, "p1", avoid=frozenset({"p1"})) == {"d1"}, "before the avoided edge"


def test_a_producer_that_asked_for_less_itself_decodes_after_its_consumers() -> None:
    fleet = fleet_of("p1", "d0", "d1")
    avoid(fleet, "p1 d0")
    busy(fleet, "d1")
    busy(fleet, "p1")
    assert decodes(fleet, "p1") == {"d1"}


def test_without_a_broken_edge_busy_consumers_are_used_before_a_producer_decodes() -> None:
    fleet = fleet_of("p0", "d0", "d1")
    busy(fleet, "d0")
    busy(fleet, "d1")
    assert decodes(fleet, "p0") == {"d0", "d1"}


# --- KV that is held for others ---


def handed_off(fleet: Fleet, tokens: int, now: float = NOW) -> Reservation:
    reservation = fleet.reserve_prefill(Demand(tokens), now)
    assert reservation is not None
    fleet.accounts.hand_off(reservation, tokens, since=now)
    fleet.check_invariants()
    return reservation


def weight(fleet: Fleet) -> float:
    """What the next prefill on p0 would find."""
    fleet.accounts.weigh()
    return fleet.accounts.loads["p0"].placed_c


def test_held_blocks_weigh_on_the_next_prefill_by_the_share_of_the_cache_that_they_take() -> None:
    fleet = fleet_of("p0", "p1", "d0")
    held = handed_off(fleet, 10_000)  # a tenth of the cache that is assumed: weighs 1,000 tokens
    assert held.iid == "p0"
    assert fleet.resident()["p0"].prefill == 0
    assert fleet.kv(NOW)["p0"].handoffs == 1
    for tokens, iid in ((1, "p1"), (1020, "p1"), (1, "p0")):
        reservation = fleet.reserve_prefill(Demand(tokens), NOW)
        assert reservation is not None
        assert reservation.iid == iid
    fleet.accounts.pulled(held)
    fleet.accounts.pulled(held)
    fleet.check_invariants()
    assert fleet.kv(NOW)["p0"].handoffs == 0
    assert weight(fleet) == 0.0


def test_a_few_weigh_nothing_even_between_idle_engines() -> None:
    """As after a return: 4,999 of 100,000 tokens wait for nobody, and both engines have nothing to do."""
    fleet = fleet_of("p0", "p1", "d0")
    handed_off(fleet, 4_999)
    assert weight(fleet) == 0.0
    chosen = []
    for _ in range(6):
        reservation = fleet.reserve_prefill(Demand(60), NOW)
        assert reservation is not None
        chosen.append(reservation.iid)
        fleet.release(reservation, NOW)
    assert chosen == ["p1", "p0"] * 3
    one_more = fleet.reserve_prefill(Demand(1), NOW, avoid={"p1"})
    assert one_more is not None
    fleet.accounts.hand_off(one_more, 1, since=NOW)
    assert weight(fleet) == 250.0, "a twentieth of the cache"


def test_they_weigh_until_their_lease_ends_and_are_orphaned_then() -> None:
    fleet = fleet_of("p0", "d0")
    handed_off(fleet, 50_000)
    fleet.tick(NOW + 29.9)
    assert weight(fleet) == 25_000.0
    fleet.tick(NOW + 30.0)
    assert weight(fleet) == 0.0
    assert (fleet.kv(NOW + 30.0)["p0"].handoffs, fleet.kv(NOW + 30.0)["p0"].orphaned) == (0, 1)


def test_they_leave_the_books_of_a_router_that_makes_no_passes_too() -> None:
    fleet = fleet_of("p0", "d0")
    handed_off(fleet, 100)
    assert fleet.kv(NOW + 29.9)["p0"].handoffs == 1
    assert fleet.kv(NOW + 30.0)["p0"].handoffs == 0


def test_a_longer_lease_is_known_from_the_handoff_timeout() -> None:
    specs = (EngineSpec("p0", "http://p0", Role.PREFILL), EngineSpec("d0", "http://d0"))
    fleet = Fleet(fleet_config(*specs, serving=serving_settings(handoff_timeout_s=50.0)), {})
    handed_off(fleet, 10)
    assert fleet.kv(NOW + 59)["p0"].handoffs == 1


def test_a_reservation_that_ended_otherwise_holds_nothing() -> None:
    fleet = fleet_of("p0", "d0")
    reservation = fleet.reserve_prefill(Demand(10), NOW)
    assert reservation is not None
    fleet.release(reservation, NOW)
    fleet.accounts.hand_off(reservation, 10, since=NOW)
    assert fleet.kv(NOW)["p0"].handoffs == 0


def test_held_handoffs_travel_with_their_weight() -> None:
    fleet = fleet_of("p0", "d0")
    handed_off(fleet, 50_000)
    ledger = fleet.export(NOW + 1).kv_ledger
    other = fleet_of("p0", "d0")
    other.restore(replace(handoff_document(p0="prefill", d0="decode"), kv_ledger=ledger), 7.0)
    other.check_invariants()
    assert weight(other) == pytest.approx(25_000.0)
    other.tick(7.0 + 34.0)
    assert weight(other) == 0.0
