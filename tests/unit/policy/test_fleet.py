"""Placement through the fleet: select and reserve in one step, roles, pins, residents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.errors import InvariantViolation
from narwhal.model.engine import EngineProfile, EngineSpec, Leg, Role
from narwhal.model.evidence import HealthProbed, ProbeOutcome
from narwhal.model.placement import Demand, Reservation, Resident
from narwhal.policy.fleet import Fleet
from narwhal.policy.travel import Opening
from tests.support.settings import fleet_config, handoff_document

NOW = 100.0


def spec(iid: str, role: Role = Role.PREFILL, *, pin: bool = False) -> EngineSpec:
    return EngineSpec(iid=iid, url=f"http://{iid}.test", role=role, pin=pin)


def profile(iid: str, *, b: float = 0.001, slope: float = 1e-6, capacity: int | None = None) -> EngineProfile:
    return EngineProfile(
        iid=iid,
        ttft_a=0.0,
        ttft_b=b,
        ttft_c=0.0,
        tpot_slope=slope,
        tpot_intercept=0.0,
        kv_capacity_tokens=capacity,
    )


def fleet_of(*specs: EngineSpec, profiles: tuple[EngineProfile, ...] = ()) -> Fleet:
    return Fleet(fleet_config(*specs), {p.iid: p for p in profiles})


def split() -> Fleet:
    return fleet_of(
        spec("p0"), spec("p1"), spec("d0", Role.DECODE), spec("d1", Role.DECODE), spec("d2", Role.DECODE)
    )


def prefill(fleet: Fleet, tokens: int = 100, avoid: frozenset[str] = frozenset()) -> Reservation:
    reservation = fleet.reserve_prefill(Demand(tokens), NOW, avoid=avoid)
    assert reservation is not None
    return reservation


def decode(
    fleet: Fleet, tokens: int = 100, producer: str = "p0", avoid: frozenset[str] = frozenset()
) -> Reservation:
    reservation = fleet.reserve_decode(Demand(tokens), NOW, producer=producer, avoid=avoid)
    assert reservation is not None
    return reservation


def test_each_leg_goes_to_an_engine_of_its_role():
    fleet = split()
    assert prefill(fleet).iid == "p0"
    assert decode(fleet).iid == "d0"


def test_without_profiles_the_least_resident_work_is_chosen():
    fleet = split()
    prefill(fleet, 1000)
    assert prefill(fleet, 10).iid == "p1"
    assert prefill(fleet, 10).iid == "p1"


def test_equal_engines_take_turns_in_order_of_id():
    fleet = split()
    chosen = []
    for _ in range(6):
        reservation = decode(fleet)
        chosen.append(reservation.iid)
        fleet.release(reservation, NOW)
    assert chosen == ["d0", "d1", "d2", "d0", "d1", "d2"]


def test_costs_within_one_percent_are_a_tie():
    fleet = split()
    prefill(fleet, 1000)  # p0
    prefill(fleet, 1005)  # p1
    assert prefill(fleet, 1).iid == "p0"  # 1001 against 1006: a tie, p0 was chosen longer ago
    fleet = split()
    prefill(fleet, 1020)  # p0
    prefill(fleet, 1000)  # p1
    assert prefill(fleet, 1).iid == "p1"  # 2% apart: the cheaper one


def test_with_profiles_the_least_predicted_work_is_chosen():
    fast, slow = profile("p1", b=0.001), profile("p0", b=0.01)
    fleet = fleet_of(
        spec("p0"), spec("p1"), spec("d0", Role.DECODE), profiles=(fast, slow, profile("d0", b=1.0))
    )
    first = prefill(fleet, 100)
    assert (first.iid, first.cost) == ("p1", pytest.approx(0.1))
    assert [prefill(fleet, 100).iid for _ in range(8)] == ["p1"] * 8  # 0.9 s resident there + 0.1
    assert prefill(fleet, 110).iid == "p1"
    assert prefill(fleet, 100).iid == "p0"


def test_a_profile_for_some_engines_only_leaves_all_neutral():
    fleet = fleet_of(spec("p0"), spec("p1"), spec("d0", Role.DECODE), profiles=(profile("p1"),))
    assert not fleet.profiled
    assert prefill(fleet, 100).cost == 100.0


def test_prefill_prefers_an_engine_without_resident_decode_work():
    both = fleet_of(spec("a", Role.DECODE), spec("b", Role.DECODE))
    assert decode(both, producer="b").iid == "a"
    prefill(both, 5000)  # on b: no decode there
    assert prefill(both, 10).iid == "b"


def test_prefill_joins_decode_work_when_every_quiet_engine_would_miss_the_target():
    specs = (spec("a", Role.DECODE), spec("b", Role.DECODE))
    fleet = fleet_of(*specs, profiles=(profile("a"), profile("b")))
    assert decode(fleet, producer="b").iid == "a"
    assert prefill(fleet, 900).iid == "b"
    relieved = prefill(fleet, 900)
    assert (relieved.iid, relieved.violates_slo) == ("a", False)


def test_the_cheapest_takes_it_when_every_candidate_violates_the_target():
    specs = (spec("p0"), spec("p1"), spec("d0", Role.DECODE))
    fleet = fleet_of(*specs, profiles=(profile("p0", b=0.02), profile("p1", b=0.01), profile("d0")))
    hopeless = prefill(fleet, 1000)
    assert (hopeless.iid, hopeless.violates_slo) == ("p1", True)
    assert not prefill(fleet, 1).violates_slo  # p0 keeps it


def test_decode_cost_is_the_share_of_the_tokens_that_keep_the_target():
    specs = (spec("p0"), spec("d0", Role.DECODE), spec("d1", Role.DECODE))
    profiles = (profile("p0"), profile("d0", slope=1e-5), profile("d1", slope=2e-5))
    fleet = fleet_of(*specs, profiles=profiles)  # target 0.05 s: 5,000 and 2,500 tokens
    first = decode(fleet, 1000)
    assert (first.iid, first.cost) == ("d0", pytest.approx(0.2))
    assert decode(fleet, 1000).cost == pytest.approx(0.4)
    full = decode(fleet, 4500)
    assert (full.iid, full.violates_slo) == ("d0", True)


def test_a_full_kv_cache_violates_the_target_too():
    fleet = fleet_of(
        spec("p0"), spec("d0", Role.DECODE), profiles=(profile("p0"), profile("d0", capacity=500))
    )
    assert not decode(fleet, 400).violates_slo
    assert decode(fleet, 400).violates_slo


def test_an_engine_that_can_never_keep_the_target_comes_last():
    never = replace(profile("d0"), tpot_intercept=1.0)
    fleet = fleet_of(
        spec("p0"),
        spec("d0", Role.DECODE),
        spec("d1", Role.DECODE),
        profiles=(profile("p0"), never, profile("d1")),
    )
    assert [decode(fleet, 10).iid for _ in range(3)] == ["d1"] * 3


def test_decode_prefers_another_engine_than_the_producer():
    fleet = fleet_of(spec("a", Role.DECODE), spec("b", Role.DECODE))
    producer = prefill(fleet).iid
    assert [decode(fleet, producer=producer).iid for _ in range(3)] == ["b"] * 3


def test_the_producer_decodes_when_no_other_engine_may():
    fleet = fleet_of(spec("only"))
    assert prefill(fleet).iid == "only"
    assert decode(fleet, producer="only").iid == "only"


def test_unpinned_engines_of_the_other_role_serve_only_when_a_role_is_empty():
    fleet = fleet_of(spec("p0"), spec("p1"))
    assert decode(fleet, producer="p0").iid == "p1"
    assert [decode(split(), 10**6).iid for _ in range(4)] == ["d0"] * 4


def test_a_pinned_engine_takes_no_leg_of_the_other_role():
    fleet = fleet_of(spec("p0", pin=True), spec("p1"))
    assert [decode(fleet, producer="p1").iid for _ in range(3)] == ["p1"] * 3
    pinned = fleet_of(spec("p0", pin=True), spec("p1", pin=True))
    assert not pinned.schedulable(Leg.DECODE)
    assert not pinned.can_serve(Leg.DECODE, NOW)
    assert pinned.schedulable(Leg.PREFILL)
    assert pinned.reserve_decode(Demand(1), NOW, producer="p0") is None


def test_engines_that_failed_this_request_are_used_only_when_no_other_is_left():
    fleet = split()
    assert prefill(fleet, avoid=frozenset({"p0"})).iid == "p1"
    assert prefill(fleet, avoid=frozenset({"p0", "p1"})).iid in {"p0", "p1"}
    both = fleet_of(spec("a", Role.DECODE), spec("b", Role.DECODE))
    assert decode(both, producer="a", avoid=frozenset({"b"})).iid == "a"


def test_release_gives_back_exactly_what_was_reserved_and_only_once():
    fleet = split()
    first, second = prefill(fleet, 300), prefill(fleet, 300)
    leg = decode(fleet)
    fleet.release(first, NOW)
    fleet.release(first, NOW)
    assert fleet.resident() == {
        "d0": Resident(0, 1),
        "d1": Resident(),
        "d2": Resident(),
        "p0": Resident(),
        "p1": Resident(1, 0),
    }
    fleet.release(second, NOW)
    fleet.release(leg, NOW)
    assert set(fleet.resident().values()) == {Resident()}
    assert prefill(fleet, 7).cost == 7.0


def test_token_counts_are_asked_from_the_least_loaded_prefill_engine():
    fleet = split()
    assert fleet.sizer(NOW) == "p0"
    prefill(fleet, 10)
    assert fleet.sizer(NOW) == "p1"
    assert fleet_of(spec("d0", Role.DECODE, pin=True)).sizer(NOW) is None


def test_restore_moves_unpinned_engines_and_leaves_pinned_ones():
    fleet = fleet_of(spec("a"), spec("b", pin=True), spec("c", Role.DECODE))
    held = prefill(fleet)
    document = handoff_document(a="decode", b="decode", c="prefill")
    assert fleet.restore(document, NOW) == ()
    assert fleet.roles() == {"a": Role.DECODE, "b": Role.PREFILL, "c": Role.PREFILL}
    assert fleet.resident()[held.iid] == Resident(1, 0)
    assert fleet.export(NOW).roles == fleet.roles()
    assert decode(fleet, producer="b").iid == "a"


def test_restore_of_another_engine_set_keeps_the_configured_split_and_says_so():
    fleet = fleet_of(spec("a"), spec("b", Role.DECODE))
    assert fleet.restore(handoff_document(a="decode", b="prefill"), NOW) == ()
    (sentence,) = fleet.restore(handoff_document(a="decode", x="prefill"), NOW)
    assert "a, x" in sentence
    assert fleet.roles() == {"a": Role.PREFILL, "b": Role.DECODE}


def test_every_configured_engine_counts_as_eligible():
    fleet = split()
    assert fleet.available(NOW) == ("d0", "d1", "d2", "p0", "p1")
    assert fleet.eligible("p0", NOW)
    assert not fleet.eligible("nobody", NOW)


def test_accounts_that_differ_from_open_reservations_are_a_bug():
    fleet = split()
    prefill(fleet)
    fleet.accounts._open.clear()
    with pytest.raises(InvariantViolation, match="p0"):
        fleet.check_invariants()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["prefill", "decode", "release"]), st.integers(0, 10**6), st.integers(0, 10**6)
    ),
    max_size=60,
)


@given(steps=STEPS, profiled=st.booleans())
def test_residents_never_go_negative_and_every_reservation_closes(steps, profiled):
    iids = ("p0", "p1", "d0", "d1")
    specs = [spec(iid, Role.PREFILL if iid[0] == "p" else Role.DECODE) for iid in iids]
    fleet = fleet_of(*specs, profiles=tuple(profile(iid) for iid in iids) if profiled else ())
    held: list[Reservation] = []
    for act, tokens, pick in steps:
        if act == "prefill":
            held.append(prefill(fleet, tokens))
        elif act == "decode":
            held.append(decode(fleet, tokens))
        elif held:
            fleet.release(held.pop(pick % len(held)), NOW)
        fleet.check_invariants()
        counts = fleet.resident()
        assert sum(r.prefill + r.decode for r in counts.values()) == len(held)
    for reservation in held:
        fleet.release(reservation, NOW)
    fleet.check_invariants()
    assert set(fleet.resident().values()) == {Resident()}
    assert all(load.prefill_work == 0 and load.kv_tokens == 0 for load in fleet._loads.values())


# --- health checks that are owed ---------------------------------------------------------------------


def cautious() -> Fleet:
    fleet = split()
    roles = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode", "d2": "decode"}
    fleet.restore(handoff_document(**roles), NOW, opening=Opening(cautious=True))
    return fleet


def test_after_a_cautious_restore_no_engine_is_used_before_its_good_check() -> None:
    fleet = cautious()
    assert fleet.standings.unverified() == ("d0", "d1", "d2", "p0", "p1")
    assert fleet.available(NOW) == ()
    assert not any(fleet.can_serve(leg, NOW) for leg in (Leg.PREFILL, Leg.DECODE))
    assert all(fleet.schedulable(leg) for leg in (Leg.PREFILL, Leg.DECODE))
    assert fleet.reserve_prefill(Demand(1), NOW) is None
    assert fleet.reserve_decode(Demand(1), NOW, producer="p0") is None
    assert fleet.sizer(NOW) is None


def test_a_good_check_brings_an_engine_back_and_it_serves_both_legs_while_it_is_alone() -> None:
    fleet = cautious()
    fleet.step(HealthProbed("p1", ProbeOutcome.GOOD), NOW)
    fleet.step(HealthProbed("nobody", ProbeOutcome.GOOD), NOW)
    assert (prefill(fleet).iid, decode(fleet, producer="p1").iid) == ("p1", "p1")
    fleet.step(HealthProbed("d2", ProbeOutcome.GOOD), NOW)
    assert decode(fleet, producer="p1").iid == "d2"
    assert fleet.standings.unverified() == ("d0", "d1", "p0")
    for iid in ("d0", "d1", "p0"):
        fleet.step(HealthProbed(iid, ProbeOutcome.GOOD), NOW)
    assert fleet.available(NOW) == ("d0", "d1", "d2", "p0", "p1")
    fleet.check_invariants()


def test_a_pinned_engine_does_not_stand_in_and_roles_are_kept_by_caution() -> None:
    fleet = fleet_of(spec("p0", pin=True), spec("d0", Role.DECODE))
    fleet.restore(handoff_document(p0="prefill", d0="decode"), NOW, opening=Opening(cautious=True))
    fleet.step(HealthProbed("p0", ProbeOutcome.GOOD), NOW)
    assert fleet.can_serve(Leg.PREFILL, NOW)
    assert not fleet.can_serve(Leg.DECODE, NOW)
    assert fleet.roles() == {"p0": Role.PREFILL, "d0": Role.DECODE}


def test_a_later_restore_without_caution_does_not_excuse_a_check() -> None:
    fleet = cautious()
    fleet.restore(handoff_document(p0="prefill", p1="prefill", d0="decode", d1="decode", d2="decode"), NOW)
    assert fleet.standings.unverified() == ("d0", "d1", "d2", "p0", "p1")
