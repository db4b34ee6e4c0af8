"""The documents have every named key, rest where the table says, and show every value they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from narwhal.api.documents import (
    cluster_document,
    handoff_document,
    health_body,
    lifecycle_document,
    ready_body,
    state_document,
)
from narwhal.api.resting import HANDOFF, RESTING, STATE, with_resting
from narwhal.model.control import OwnerRef
from narwhal.model.evidence import Check
from narwhal.model.monitoring import STAGES
from narwhal.model.role_control import RoleControlView
from narwhal.model.standing import EjectionView
from tests.support import views

COUNTERS = {
    "served", "failed", "unserved", "refused", "rejected", "expired", "cancelled", "offered",
    "invalid_requests",
}  # fmt: skip

# Every key that http-api.md section 6 names, with those below it.
STATE_KEYS: dict[str, set[str]] = {
    "": COUNTERS
    | {
        "schema", "schema_version", "monitoring", "ha", "admission", "serving", "http_pools", "pools", "load",
        "thresholds", "slo", "resident", "pinned", "ejected", "quarantined", "draining", "probation", "holds",
        "edges", "kv", "health", "breaker", "control", "flips",
    },
    "monitoring": {"degraded", "reason", "consecutive", "failures", "stages"},
    "ha": {"role", "epoch", "holder", "blocked", "store"},
    "admission": {
        "inflight", "limit", "queued", "queue_capacity", "queue_high_water", "mode", "margin", "engine_auth",
    },
    "serving": {"attempts", "retries", "credits"},
    "pools": {"prefill", "decode"},
    "breaker": {"failures", "verifying"},
    "load": {"prefill", "decode"},
    "health.d0": {"scored", "undersampled", "last_scored_s_ago", "prefill_paused", "prefill_pauses"},
    "control": {"decision", "rule", "reason", "iid", "role", "at", "numbers", "flips_refused"},
}  # fmt: skip


def as_sent(document: Mapping[str, Any]) -> dict[str, Any]:
    sent: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return sent


def at_path(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split(".") if path else ():
        value = value[key]
    return value


@pytest.mark.parametrize("place", STATE_KEYS)
def test_state_has_exactly_the_named_keys(place: str) -> None:
    assert set(at_path(as_sent(state_document(views.STATE)), place)) == STATE_KEYS[place]


def test_state_lists_every_stage_with_its_tally() -> None:
    stages = as_sent(state_document(views.STATE))["monitoring"]["stages"]
    assert set(stages) == set(STAGES)
    assert all(
        set(tally) == {"failures", "consecutive", "last_class", "last_at"} for tally in stages.values()
    )
    assert stages["handoff"] == {
        "failures": 6, "consecutive": 5, "last_class": "OSError", "last_at": 123.5,
    }  # fmt: skip


def test_state_tells_the_values_of_the_view() -> None:
    state = as_sent(state_document(views.STATE))
    assert (state["schema"], state["schema_version"]) == ("narwhal.state", 1)
    assert (state["served"], state["invalid_requests"], state["offered"]) == (9, 2, 31)
    assert state["pools"] == {"prefill": ["p0", "p1"], "decode": ["d0"]}
    assert state["resident"]["p0"] == {"prefill": 1, "decode": 0}
    assert state["pinned"] == ["d0", "p1"]
    assert (state["ejected"], state["quarantined"]) == (["p2"], ["d0", "d1"])
    assert state["holds"] == {
        "d0": {"kind": "inference", "reason": "3 stream failures in a row", "remaining_s": None},
        "d1": {"kind": "quarantine", "reason": "a decode leg failed", "remaining_s": 2.5},
    }
    assert state["edges"] == [
        {
            "producer": "p0",
            "consumer": "d0",
            "failures": 3,
            "avoided": True,
            "age_s": 1.5,
            "reason": "3 failed decodes in a row",
        }
    ]
    assert state["kv"]["p0"] == {"handoffs": 2, "tokens": 300, "orphaned": 1}
    assert state["breaker"] == {"failures": {"d0": {"stream": 2}}, "verifying": ["d0", "p1"]}
    assert state["ha"]["store"] == {"mode": "standalone", "latency_ms": 0.4, "failures": 2}
    assert state["http_pools"]["data"]["busy"] == 2
    assert (state["serving"]["attempts"], state["admission"]["limit"]) == (11, 512)
    assert state["slo"] == {"ttft_s": views.STATE.slo.ttft_s, "tpot_s": views.STATE.slo.tpot_s}
    assert state["thresholds"]["cooldown_s"] == 10.0


def test_state_tells_drift_and_role_control() -> None:
    state = as_sent(state_document(views.STATE))
    assert (state["load"], state["probation"]) == ({"prefill": 0.25, "decode": 0.5}, ["d0", "p1"])
    assert state["health"]["d0"]["last_scored_s_ago"] == 2.5
    (flip,) = state["flips"]
    assert flip == {
        "decision": "move",
        "rule": "floor",
        "reason": "0 eligible prefill engines, the floor is 1",
        "iid": "p1",
        "role": "prefill",
        "at": 1700000001.0,
        "numbers": {"eligible_prefill": 0, "min_prefill": 1},
    }
    assert state["control"]["decision"] == "keep"
    (refusal,) = state["control"]["flips_refused"]
    assert set(refusal) == {"rule", "reason", "at", "numbers"}


def test_before_the_first_decision_control_has_its_keys() -> None:
    state = as_sent(state_document(replace(views.STATE, role_control=RoleControlView())))
    assert state["control"] == {
        **dict.fromkeys(("decision", "rule", "reason", "iid", "role", "at", "numbers")),
        "flips_refused": [],
    }


@pytest.mark.parametrize("field", RESTING[STATE], ids=lambda field: field.path)
def test_state_rests_where_the_table_says(field: Any) -> None:
    state = as_sent(state_document(views.STATE))
    assert at_path(state, field.path) == orjson.loads(orjson.dumps(field.value))


@pytest.mark.parametrize("field", RESTING[HANDOFF], ids=lambda field: field.path)
def test_the_handoff_rests_where_its_document_has_no_value(field: Any) -> None:
    handoff = as_sent(handoff_document(views.HANDOFF))
    assert at_path(handoff, field.path) == orjson.loads(orjson.dumps(field.value))


def test_a_resting_value_never_hides_a_live_one() -> None:
    live = with_resting(STATE, {"ejected": ["d0"], "monitoring": {"stages": {"health": {"failures": 1}}}})
    assert live["ejected"] == ["d0"]
    assert live["monitoring"]["stages"]["health"] == {"failures": 1}


@pytest.mark.parametrize(
    ("name", "fields"),
    [(name, fields) for name, fields in RESTING.items()],
)
def test_the_table_names_each_field_once_and_who_fills_it(name: str, fields: tuple[Any, ...]) -> None:
    assert len({field.path for field in fields}) == len(fields)
    assert all(field.filled_by for field in fields)


def test_the_handoff_is_the_stored_document_with_its_lifecycle_complete() -> None:
    handoff = as_sent(handoff_document(views.HANDOFF))
    assert {**handoff, **views.HANDOFF.document, "lifecycle": handoff["lifecycle"]} == handoff
    assert set(handoff["lifecycle"]) == {
        "wave", "records", "engine_restart_policy", "process_starts", "backend_outage",
    }  # fmt: skip
    assert "mirrored" not in handoff


def test_a_standby_says_that_its_handoff_is_a_copy_and_how_old() -> None:
    handoff = as_sent(handoff_document(replace(views.HANDOFF, mirrored=True, mirror_age_s=0.25)))
    assert (handoff["mirrored"], handoff["mirror_age_s"]) == (True, 0.25)


def test_the_cluster_document_has_exactly_the_named_keys() -> None:
    cluster = as_sent(cluster_document(views.CLUSTER))
    assert set(cluster) == {"schema", "schema_version", "lease", "routers", "ownership_changes", "store"}
    assert set(cluster["lease"]) == {
        "state", "holder", "router_id", "url", "epoch", "seq", "ttl_s", "valid_for_s",
    }  # fmt: skip
    assert [set(router) for router in cluster["routers"]] == 2 * [
        {
            "router_id", "url", "role", "epoch", "mirror_age_s", "version", "ready_to_take", "drift",
            "seen_s", "control_url",
        }
    ]  # fmt: skip
    assert set(cluster["store"]) == {"mode", "latency_ms", "failures"}
    assert cluster["ownership_changes"][0]["router_id"] == "a:1"


def test_ready_has_exactly_the_named_keys() -> None:
    body = as_sent(ready_body(views.READY))
    assert body == {
        "status": "ready",
        "control_ready": True,
        "reason": "",
        "epoch": 7,
        "holder": "a:1:00ff",
        "role": "active",
        "owner": {"router_id": "a:1", "url": "http://a:1"},
    }


def test_a_standbys_ready_body_adds_what_a_takeover_would_meet() -> None:
    body = as_sent(ready_body(views.STANDING_BY))
    assert (body["status"], body["ready_to_take"]) == ("not_ready", True)
    assert body["drift"] == ["config digest differs from the owner's"]


def test_an_unknown_owner_is_null() -> None:
    assert ready_body(replace(views.READY, owner=None))["owner"] is None
    assert (
        ready_body(replace(views.READY, owner=OwnerRef("b:2", "http://b:2")))["owner"]["url"] == "http://b:2"
    )


def test_health_counts_engines() -> None:
    assert health_body(views.HEALTHY) == {"status": "ok", "instances": 4, "available_instances": 3}


def test_the_documentation_lists_every_field_that_rests() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "http-api.md").read_text(encoding="utf-8")
    rows = [
        f"| {document} | `{field.path}` | `{orjson.dumps(field.value).decode()}` | {field.filled_by} |"
        for document, fields in RESTING.items()
        for field in fields
    ]
    assert text.endswith("| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n")


def test_an_ejected_engine_shows_why_and_how_its_checks_ended() -> None:
    checks = (Check("health", "passed", ""), Check("model", "failed", "no such model"))
    out = EjectionView("3 connection failures", "model", "no such model", checks)
    shown = lifecycle_document(replace(views.LIFECYCLE, ejections={"d0": out, "p0": out}))["engines"]
    assert shown["d0"]["error"] == "ejected: 3 connection failures; model failed: no such model"
    assert [check["name"] for check in shown["d0"]["checks"]] == ["health", "model"]
    assert (shown["d0"]["state"], shown["p0"]["error"]) == ("active", ""), "a drained one shows its drain"
