"""How many legs of a kind an engine has at a time, through the fleet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.errors import NoSeat
from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.model.placement import Demand, Reservation
from narwhal.policy.fleet import Fleet
from tests.support.settings import fleet_config, serving_settings

NOW = 100.0


def fleet_of(roles: str, *, prefill: int = 0, decode: int = 0) -> Fleet:
    """Upper case is pinned."""
    specs = [
        EngineSpec(
            f"e{number}",
            f"http://e{number}.test",
            role=Role.PREFILL if letter in "pP" else Role.DECODE,
            pin=letter.isupper(),
        )
        for number, letter in enumerate(roles)
    ]
    settings = serving_settings(prefill_concurrency=prefill, decode_concurrency=decode)
    return Fleet(fleet_config(*specs, serving=settings), {})


def take(fleet: Fleet, leg: Leg, tokens: int = 100, producer: str = "e0") -> Reservation:
    demand = Demand(tokens)
    if leg is Leg.PREFILL:
        reservation = fleet.reserve_prefill(demand, NOW)
    else:
        reservation = fleet.reserve_decode(demand, NOW, producer=producer)
    assert reservation is not None
    return reservation


def test_an_engine_with_a_seat_is_taken_whatever_it_costs() -> None:
    fleet = fleet_of("pp", prefill=1)
    assert take(fleet, Leg.PREFILL, 10).iid == "e0"
    assert take(fleet, Leg.PREFILL, 10_000).iid == "e1"


def test_with_every_seat_taken_a_leg_waits_until_one_is_given_back() -> None:
    fleet = fleet_of("pp", prefill=1)
    first, _ = take(fleet, Leg.PREFILL), take(fleet, Leg.PREFILL)
    with pytest.raises(NoSeat):
        take(fleet, Leg.PREFILL)
    fleet.release(first, NOW)
    assert take(fleet, Leg.PREFILL).iid == "e0"


def test_a_prefill_that_has_ended_has_no_seat_though_its_kv_is_held() -> None:
    fleet = fleet_of("pd", prefill=1, decode=1)
    fleet.accounts.hand_off(take(fleet, Leg.PREFILL), 100, since=NOW)
    assert take(fleet, Leg.PREFILL).iid == "e0"


def test_the_two_legs_are_counted_apart_and_0_is_no_limit() -> None:
    fleet = fleet_of("pd", decode=1)
    for _ in range(9):
        take(fleet, Leg.PREFILL)
    take(fleet, Leg.DECODE)
    with pytest.raises(NoSeat):
        take(fleet, Leg.DECODE)


def test_a_full_role_spills_neither_on_the_other_one_nor_on_the_producer() -> None:
    fleet = fleet_of("pd", prefill=1, decode=1)
    take(fleet, Leg.DECODE)
    with pytest.raises(NoSeat):
        take(fleet, Leg.DECODE, producer="e0")


def test_where_nobody_may_serve_there_is_no_seat_to_wait_for() -> None:
    fleet = fleet_of("P", decode=1)
    assert fleet.reserve_decode(Demand(1), NOW, producer="e0") is None


@given(st.data())
def test_no_engine_ever_has_more_than_it_may(data: st.DataObject) -> None:
    limits = {Leg.PREFILL: data.draw(st.integers(0, 3)), Leg.DECODE: data.draw(st.integers(0, 3))}
    fleet = fleet_of("ppddd", prefill=limits[Leg.PREFILL], decode=limits[Leg.DECODE])
    held: list[Reservation] = []
    for _ in range(data.draw(st.integers(1, 40))):
        leg = data.draw(st.sampled_from((Leg.PREFILL, Leg.DECODE)))
        if held and data.draw(st.booleans()):
            fleet.release(held.pop(), NOW)
            continue
        try:
            held.append(take(fleet, leg))
        except NoSeat:
            busy = [sum(one.leg is leg and one.iid == iid for one in held) for iid in fleet.engines]
            assert limits[leg] and busy.count(limits[leg]) == (2 if leg is Leg.PREFILL else 3)
        for resident in fleet.resident().values():
            assert resident.prefill <= (limits[Leg.PREFILL] or 40)
            assert resident.decode <= (limits[Leg.DECODE] or 40)
    fleet.check_invariants()
