"""Times inside documents, and what a handoff carries for parts that are not built yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from narwhal.model.engine import EngineSpec, Role
from narwhal.model.handoff import HandoffDocument, LogPosition
from narwhal.policy.ageing import aged, alike
from narwhal.policy.fleet import Fleet
from narwhal.policy.handoff_codec import at_age, decode, diff, encode
from narwhal.policy.takeover import SavedState, grown_older
from tests.support.settings import fleet_config, handoff_document

FULL = replace(
    handoff_document(e0="prefill", e1="decode"),
    ejected=("e1", "gone"),
    inference_sources={"e1": ("e0",), "gone": ("",)},
    holds={"e0": {"kind": "quarantine", "remaining_s": 8.0, "reason": "connection"}, "gone": {}},
    streaks={"e0": {"timeout": 2}, "gone": {"stream": 1}},
    edges=[{"producer": "e0", "consumer": "e1", "reason": "why", "age_s": 20.0}],
    kv_ledger={
        "e0": [
            {"handoffs": 2, "tokens": 100, "work": 0.5, "remaining_s": 3.0},
            {"handoffs": 1, "tokens": 7, "work": 0.1, "remaining_s": 29.5},
        ],
        "gone": [],
    },
    lifecycle={"records": [{"engine": "e1", "state": "draining"}], "wave": None, "newer": {"a": 1}},
    demand_risk={"kind": "surge", "age_s": 4.0, "events": {}},
    extra={"field_of_a_newer_router": [1, {"deep": True}]},
)


@pytest.mark.parametrize(
    ("value", "by_s", "after"),
    [
        ({"remaining_s": 5.0}, 1.5, {"remaining_s": 3.5}),
        ({"age_s": 5}, 1.5, {"age_s": 6.5}),
        ({"a": {"remaining_s": 1.0}, "b": {"remaining_s": 2.0}}, 1.0, {"b": {"remaining_s": 1.0}}),
        ([{"remaining_s": 1.0}, {"remaining_s": None}, 3, "x"], 9.0, [{"remaining_s": None}, 3, "x"]),
        ({"remaining_s": True, "other_s": 5.0}, 2.0, {"remaining_s": True, "other_s": 5.0}),
        (None, 5.0, None),
        ({"remaining_s": 5.0}, 0.0, {"remaining_s": 5.0}),
        ({"remaining_s": 5.0}, -3.0, {"remaining_s": 5.0}),
    ],
)
def test_times_run_and_what_has_no_time_left_goes(value: Any, by_s: float, after: Any) -> None:
    assert aged(value, by_s) == after


def test_the_same_thing_told_a_moment_later_is_alike_and_a_longer_hold_is_not() -> None:
    told = {"e0": {"remaining_s": 7.0, "reason": "x"}}
    assert alike(told, {"e0": {"remaining_s": 7.004, "reason": "x"}})
    assert not alike(told, {"e0": {"remaining_s": 9.0, "reason": "x"}})
    assert not alike(told, {"e0": {"remaining_s": 7.0, "reason": "y"}})
    assert not alike(told, {})
    assert alike((1, 2), [1, 2])


def test_a_document_that_only_grew_older_has_no_changes() -> None:
    later = at_age(FULL, 2.0)
    assert later != FULL
    assert diff(at_age(FULL, 2.0), later) == {}
    assert set(diff(FULL, later)) == {"holds", "edges", "kv_ledger", "demand_risk"}


@pytest.mark.parametrize(("age_s", "left_s"), [(3.0, 5.0), (None, 8.0), (0.0, 8.0)])
def test_a_restored_state_is_shortened_by_its_age_and_in_full_where_nobody_knows_it(
    age_s: float | None, left_s: float
) -> None:
    state = grown_older(SavedState("store", FULL, LogPosition(1, 1), age_s))
    assert state.document.holds["e0"]["remaining_s"] == left_s
    assert len(state.document.kv_ledger["e0"]) == (1 if age_s else 2)


def test_what_has_no_owner_yet_passes_through_a_router_with_its_time_running() -> None:
    fleet = Fleet(fleet_config(EngineSpec("e0", "http://e0"), EngineSpec("e1", "http://e1")), {})
    fleet.restore(decode(encode(FULL)), 100.0)
    state = fleet.export(102.0)
    assert state.roles == {"e0": Role.PREFILL, "e1": Role.DECODE}
    assert (state.ejected, state.streaks) == (("e1", "gone"), {"e0": {"timeout": 2}})
    assert state.edges == [{"producer": "e0", "consumer": "e1", "reason": "why", "age_s": 22.0}]
    assert {iid: [row["tokens"] for row in rows] for iid, rows in state.kv_ledger.items()} == {"e0": [100, 7]}
    assert [(row["engine"], row["state"]) for row in state.lifecycle["records"]] == [("e1", "draining")]
    assert state.lifecycle["newer"] == {"a": 1}
    assert state.lifecycle["engine_restart_policy"] == "individual"


def test_a_second_document_replaces_what_was_carried() -> None:
    fleet = Fleet(fleet_config(EngineSpec("e0", "http://e0"), EngineSpec("e1", "http://e1")), {})
    fleet.restore(FULL, 100.0)
    fleet.restore(handoff_document(e0="prefill", e1="decode"), 101.0)
    assert (fleet.export(101.0).ejected, fleet.export(101.0).holds) == ((), {})


def test_every_field_of_the_document_is_told_by_name() -> None:
    """A field that joins the document must find its way through here."""
    assert set(HandoffDocument.__dataclass_fields__) - {"extra"} == set(_shown(FULL)) - {
        "schema",
        "schema_version",
        "field_of_a_newer_router",
    }


def _shown(document: HandoffDocument) -> dict[str, Any]:
    shown = orjson.loads(encode(document))
    assert isinstance(shown, dict)
    return shown
