"""Role control through the fleet: what is moved, told and remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from narwhal.model.effect import Told
from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.model.placement import Demand
from narwhal.policy.fleet import Fleet
from narwhal.policy.travel import Opening
from tests.support.settings import controller_settings, fleet_config, handoff_document

NOW = 100.0


def fleet(*pinned: str, **controller: Any) -> Fleet:
    """p0, d0, d1 and d2, of which `pinned` keep their roles."""
    specs = [
        EngineSpec(iid, f"http://{iid}", Role.PREFILL if iid == "p0" else Role.DECODE, pin=iid in pinned)
        for iid in ("p0", "d0", "d1", "d2")
    ]
    return Fleet(fleet_config(*specs, controller=controller_settings(**controller)), {})


def told(effects: tuple[Any, ...]) -> list[tuple[str, str, str, bool]]:
    assert all(isinstance(effect, Told) for effect in effects)
    return [(effect.kind, effect.fields["iid"], effect.fields["role"], effect.enforced) for effect in effects]


def without(one: Fleet, iid: str) -> Fleet:
    one.standings.eject(iid, "it refused connections", now=NOW)
    return one


def test_a_move_changes_where_new_work_goes_at_once_and_leaves_resident_work() -> None:
    one = fleet()
    kept = one.reserve_decode(Demand(100), NOW, producer="p0")
    assert kept is not None and kept.iid == "d0"
    without(one, "p0")
    assert told(one.control(NOW)) == [("role_change", "d1", "prefill", True)]
    assert one.roles()["d1"] is Role.PREFILL
    prefill = one.reserve_prefill(Demand(100), NOW)
    assert prefill is not None and prefill.iid == "d1"
    after = one.reserve_decode(Demand(1), NOW, producer="d1")
    assert after is not None and after.iid == "d2"
    assert one.resident()["d0"].decode >= 1
    one.check_invariants()
    assert one.control(NOW + 1) == ()


def test_a_move_says_its_rule_and_its_reason() -> None:
    (change,) = without(fleet(), "p0").control(NOW)
    assert isinstance(change, Told)
    assert change.fields == {
        "iid": "d0",
        "role": "prefill",
        "rule": "floor",
        "reason": "0 eligible prefill engines, the floor is 1",
        "enforced": True,
    }


def test_pins_hold() -> None:
    one = without(fleet("d0", "d1"), "p0")
    assert told(one.control(NOW)) == [("role_change", "d2", "prefill", True)]
    one = without(fleet("d0", "d1", "d2"), "p0")
    assert told(one.control(NOW)) == [("role_refusal", "", "", False)]
    assert one.schedulable(Leg.PREFILL), "p0 is out, not gone"


def test_engines_on_hold_do_not_move() -> None:
    one = without(fleet(), "p0")
    one.standings.hold("d0", "it is suspect", now=NOW)
    assert told(one.control(NOW)) == [("role_change", "d1", "prefill", True)]


def test_a_quarantine_that_is_over_no_longer_counts() -> None:
    one = fleet()
    one.standings.quarantine("p0", NOW + 5.0, reason="its leg failed", now=NOW)
    assert one.control(NOW + 5.0) == ()


def test_advisory_tells_a_proposal_once_and_moves_nothing() -> None:
    one = without(fleet(advisory=True), "p0")
    assert told(one.control(NOW)) == [("role_proposal", "d0", "prefill", False)]
    assert one.control(NOW + 1) == ()
    assert one.roles()["d0"] is Role.DECODE


def test_after_a_cautious_takeover_roles_wait_for_the_engines_answers() -> None:
    one = fleet()
    one.restore(
        handoff_document(p0="prefill", d0="decode", d1="decode", d2="decode"),
        NOW,
        opening=Opening(cautious=True),
    )
    for iid in ("d0", "d1", "d2"):
        one.standings.verified(iid)
    assert one.control(NOW) == ()
    without(one, "p0")
    assert told(one.control(NOW)) == [("role_change", "d0", "prefill", True)], "out is out, asked or not"


def test_a_move_to_decode_is_a_risk_event_and_one_to_prefill_is_none() -> None:
    one = without(fleet(), "p0")
    one.control(NOW)
    assert one.export(NOW).demand_risk is None
    for iid in ("d1", "d2"):
        without(one, iid)
    one.standings.returns.readmit("p0", (), now=NOW)
    assert told(one.control(NOW)) == [("role_change", "d0", "decode", True)]
    assert one.export(NOW + 2.0).demand_risk == {
        "kind": "move_to_decode",
        "age_s": 2.0,
        "events": {"move_to_decode": 1},
    }


def test_a_first_token_timeout_is_a_risk_event_and_other_silence_is_none() -> None:
    one = fleet()
    for number, way in enumerate(("stream:silence", "stream:first_token", "inference_status:500")):
        one.step(LegFailed("d0", Leg.DECODE, FailureClass.STREAM, way, "no token"), NOW + number)
    risk = {"kind": "first_token_timeout", "age_s": 1.0, "events": {"first_token_timeout": 1}}
    assert one.export(NOW + 2.0).demand_risk == risk


def test_the_risk_travels_with_the_fleets_state() -> None:
    one, heir = fleet(), fleet()
    one.step(LegFailed("d0", Leg.DECODE, FailureClass.STREAM, "stream:first_token", ""), NOW)
    document = handoff_document(p0="prefill", d0="decode", d1="decode", d2="decode")
    heir.restore(replace(document, demand_risk=one.export(NOW + 5.0).demand_risk), 7000.0)
    told_on = heir.export(7010.0).demand_risk
    assert told_on is not None and told_on["age_s"] == 15.0
