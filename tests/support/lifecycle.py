"""Lifecycle and cluster documents as a router tells them, for what reads them."""

from __future__ import annotations

from typing import Any

NO_WAVE = {"id": None, "active": False, "readiness_withdrawn": False, "ready_to_stop": False}


def row(state: str = "active", **changes: Any) -> dict[str, Any]:
    return {
        "state": state,
        "draining": state != "active",
        "accepts_new": state == "active",
        "ready_to_stop": False,
        "resident": {"prefill": 0, "decode": 0},
        "deadline_at": None,
        "deadline_in_s": 9.0,
        "wave_id": None,
        "old_process_start": 1.0,
        "new_process_start": None,
        "checks": [],
        "error": "",
        **changes,
    }


def lifecycle_document(**engines: Any) -> dict[str, Any]:
    return {
        "schema": "narwhal.lifecycle",
        "schema_version": 1,
        "router": {"controls_fleet": True, "role": "active", "epoch": 7},
        "engine_restart_policy": "individual",
        "process_starts": {},
        "engines": engines,
        "wave": NO_WAVE,
        "error": "",
    }


def cluster_document() -> dict[str, Any]:
    lease = {"state": "local", "holder": "", "router_id": "", "url": "", "epoch": 0, "seq": 0}
    return {
        "schema": "narwhal.cluster",
        "schema_version": 1,
        "lease": {**lease, "ttl_s": None, "valid_for_s": None},
        "routers": [],
        "ownership_changes": [],
        "store": {"mode": "none", "latency_ms": None, "failures": 0},
    }
