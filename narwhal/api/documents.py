"""The operator documents as JSON objects: exactly the keys of http-api.md sections 2 to 4 and 6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from narwhal.api.resting import CLUSTER, HANDOFF, STANDBY_READY, STATE, with_resting
from narwhal.model.cluster_view import ClusterStatus
from narwhal.model.control import ControlStatus, Health, OwnerRef, Readiness, RouterRole, StoreStatus
from narwhal.model.engine import Role
from narwhal.model.handover import LifecycleView
from narwhal.model.monitoring import MonitoringView
from narwhal.model.numbers import unix_time
from narwhal.model.role_control import RoleControlView, RoleDecision
from narwhal.model.standing import StandingView
from narwhal.model.state_view import HandoffView, StateView

Document = dict[str, Any]


def ready_body(readiness: Readiness) -> Document:
    body: Document = {
        "status": "ready" if readiness.ready else "not_ready",
        "control_ready": readiness.control_ready,
        "reason": readiness.reason,
        "epoch": readiness.epoch,
        "holder": readiness.holder,
        "role": readiness.role.value,
        "owner": _owner(readiness.owner),
    }
    if readiness.role is RouterRole.STANDBY:
        body["ready_to_take"] = readiness.ready_to_take
        body["drift"] = readiness.drift
        with_resting(STANDBY_READY, body)
    return body


def health_body(health: Health) -> Document:
    return {
        "status": health.status.value,
        "instances": health.instances,
        "available_instances": health.available_instances,
    }


def state_document(view: StateView) -> Document:
    body: Document = {
        **_schema("narwhal.state"),
        **asdict(view.counters),
        "monitoring": _monitoring(view.monitoring),
        "ha": _ha(view.control),
        "admission": asdict(view.admission),
        "serving": asdict(view.serving),
        "http_pools": {name: asdict(pool) for name, pool in view.http_pools.items()},
        "pools": _pools(view.roles),
        "thresholds": asdict(view.thresholds),
        "slo": asdict(view.slo),
        # By hand: asdict copies deeply, and a fleet may have hundreds of engines.
        "resident": {
            iid: {"prefill": legs.prefill, "decode": legs.decode} for iid, legs in view.resident.items()
        },
        "pinned": sorted(view.pinned),
        **_standing(view.standing),
        "draining": view.draining,
        "load": {"prefill": view.load.prefill, "decode": view.load.decode},
        "probation": sorted(view.probation),
        "health": {iid: asdict(one) for iid, one in view.health.items()},
        "control": _control(view.role_control),
        "flips": [_decision(flip) for flip in view.role_control.flips],
        "edges": [asdict(edge) for edge in view.edges],
        # By hand as above.
        "kv": {
            iid: {"handoffs": held.handoffs, "tokens": held.tokens, "orphaned": held.orphaned}
            for iid, held in view.kv.items()
        },
    }
    return with_resting(STATE, body)


def handoff_document(view: HandoffView) -> Document:
    """The document as it is stored; a standby's copy says that it is one."""
    body = {**view.document, "lifecycle": dict(view.document.get("lifecycle", {}))}
    if view.mirrored:
        body["mirrored"] = True
        body["mirror_age_s"] = view.mirror_age_s
    return with_resting(HANDOFF, body)


def cluster_document(status: ClusterStatus) -> Document:
    body: Document = {
        **_schema("narwhal.cluster"),
        "lease": asdict(status.lease),
        "routers": [asdict(router) for router in status.routers],
        "ownership_changes": [asdict(change) for change in status.changes],
        "store": _store(status.store),
    }
    return with_resting(CLUSTER, body)


def lifecycle_document(view: LifecycleView) -> Document:
    control, carried, wave = view.control, view.lifecycle, view.wave
    return {
        **_schema("narwhal.lifecycle"),
        "router": {
            "controls_fleet": control.may_admit,
            "role": control.role.value,
            "epoch": control.epoch,
        },
        "engine_restart_policy": carried.get("engine_restart_policy", "individual"),
        "process_starts": carried.get("process_starts", {}),
        "engines": {
            iid: {**_upkeep(iid, view), "resident": {"prefill": legs.prefill, "decode": legs.decode}}
            for iid, legs in view.resident.items()
        },
        "wave": {
            "id": wave.wave_id,
            "active": wave.active,
            "readiness_withdrawn": wave.readiness_withdrawn,
            "ready_to_stop": wave.ready_to_stop,
        },
        "carried": {iid: dict(one) for iid, one in view.carried.items()},
        "error": "",
    }


def _upkeep(iid: str, view: LifecycleView) -> Document:
    """One engine's record; an active engine may have none. One that is out by a verdict shows why, and how
    its newest readmission checks ended; one whose identity is awaited why that is not there; one that
    is held with the whole fleet what holds that."""
    record = view.records.get(iid, {})
    out, awaited = view.ejections.get(iid), view.awaited.get(iid)
    if record.get("state", "active") == "active":
        if out is not None:
            record = {**record, "checks": [asdict(check) for check in out.checks], "error": out.sentence}
        elif awaited is not None:
            record = {**record, "error": f"its identity is awaited: {awaited}"}
        elif view.wave.reason:
            record = {**record, "error": f"held with the whole fleet: {view.wave.reason}"}
    state, deadline_at = record.get("state", "active"), unix_time(record.get("deadline_at"))
    return {
        "state": state,
        "draining": state != "active",
        "accepts_new": iid in view.accepts_new,
        "ready_to_stop": record.get("ready_to_stop", False),
        "deadline_at": deadline_at,
        "deadline_in_s": None if deadline_at is None else round(max(0.0, deadline_at - view.wall), 3),
        "wave_id": record.get("wave_id"),
        "old_process_start": unix_time(record.get("old_process_start")),
        "new_process_start": unix_time(record.get("new_process_start")),
        "checks": record.get("checks", []),
        "error": record.get("error", ""),
    }


def _schema(name: str) -> Document:
    return {"schema": name, "schema_version": 1}


def _owner(owner: OwnerRef | None) -> Document | None:
    return None if owner is None else {"router_id": owner.router_id, "url": owner.url}


def _monitoring(view: MonitoringView) -> Document:
    return {
        "degraded": view.degraded,
        "reason": view.reason,
        "consecutive": view.consecutive,
        "failures": view.failures,
        "stages": {name: asdict(tally) for name, tally in view.stages.items()},
    }


def _control(view: RoleControlView) -> Document:
    """Before the first decision its fields are null."""
    last = dict.fromkeys((*_RULING, *_MOVE)) if view.last is None else _decision(view.last)
    refused = [
        {name: value for name, value in _decision(one).items() if name in _RULING} for one in view.refused
    ]
    return {**last, "flips_refused": refused}


_RULING, _MOVE = ("rule", "reason", "at", "numbers"), ("decision", "iid", "role")


def _decision(one: RoleDecision) -> Document:
    role = one.role.value if one.role is not None else ""
    ruling = (one.rule, one.reason, one.at, dict(one.numbers))
    return dict(zip((*_RULING, *_MOVE), (*ruling, one.word.value, one.iid, role), strict=True))


def _ha(control: ControlStatus) -> Document:
    return {
        "role": control.role.value,
        "epoch": control.epoch,
        "holder": control.holder,
        "blocked": control.blocked,
        "store": _store(control.store),
    }


def _store(store: StoreStatus) -> Document:
    return {"mode": store.mode, "latency_ms": store.latency_ms, "failures": store.failures}


def _standing(view: StandingView) -> Document:
    return {
        "ejected": view.ejected,
        "quarantined": list(view.holds),
        "holds": {iid: asdict(hold) for iid, hold in view.holds.items()},
        "breaker": {"failures": view.failures, "verifying": view.verifying},
    }


def _pools(roles: Mapping[str, Role]) -> Document:
    return {role.value: sorted(iid for iid, own in roles.items() if own is role) for role in Role}
