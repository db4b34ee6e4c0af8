"""Risk events (control.md section 3) and how they travel (http-api.md section 4)."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.policy.demand import DemandRisk, Risk


def test_without_a_risk_event_there_is_nothing_to_tell() -> None:
    assert DemandRisk().export(10.0) is None
    assert DemandRisk().age_s(10.0) is None


def test_the_newest_event_is_told_with_its_age_and_the_counts_of_each_kind() -> None:
    risk = DemandRisk()
    risk.note(Risk.MOVE_TO_DECODE, 100.0)
    risk.note(Risk.FIRST_TOKEN_TIMEOUT, 110.0)
    risk.note(Risk.FIRST_TOKEN_TIMEOUT, 120.0)
    events = {"move_to_decode": 1, "first_token_timeout": 2}
    assert risk.export(127.5) == {"kind": "first_token_timeout", "age_s": 7.5, "events": events}


def test_a_receiver_counts_the_age_on_by_its_own_clock() -> None:
    risk = DemandRisk()
    risk.note(Risk.MOVE_TO_DECODE, 100.0)
    heir = DemandRisk()
    heir.restore(risk.export(130.0), 5000.0)
    assert heir.age_s(5010.0) == 40.0
    heir.note(Risk.MOVE_TO_DECODE, 5020.0)
    assert heir.export(5020.0) == {"kind": "move_to_decode", "age_s": 0.0, "events": {"move_to_decode": 2}}


def test_what_a_newer_router_counts_goes_on() -> None:
    heir = DemandRisk()
    told = {"kind": "surge", "age_s": 4, "events": {"surge": 3}}
    heir.restore(told, 50.0)
    assert heir.export(51.0) == {"kind": "surge", "age_s": 5.0, "events": {"surge": 3}}


@pytest.mark.parametrize(
    "told", [None, {}, {"kind": "surge"}, {"kind": 3, "age_s": 1.0}, {"kind": "x", "age_s": True}]
)
def test_an_account_out_of_shape_is_no_risk(told: Any) -> None:
    heir = DemandRisk()
    heir.note(Risk.MOVE_TO_DECODE, 1.0)
    heir.restore(told, 50.0)
    assert heir.export(51.0) is None


def test_events_out_of_shape_are_no_events() -> None:
    heir = DemandRisk()
    heir.restore({"kind": "surge", "age_s": 4.0, "events": []}, 50.0)
    assert heir.export(50.0) == {"kind": "surge", "age_s": 4.0, "events": {}}
