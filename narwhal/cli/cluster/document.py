"""The records of a cluster as JSON: `narwhal.cluster` v1, with what only the store knows beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from narwhal.model.handoff import LogEntry
from narwhal.model.lease import LeaseView
from narwhal.model.numbers import count
from narwhal.model.plain_text import escaped_document, shown
from narwhal.model.process import ProcessMark
from narwhal.runtime.records import ClusterRecords, public_holder, sum_of

Document = dict[str, Any]
_REASON_CHARS = 1024


def cluster_document(records: ClusterRecords) -> Document:
    """Ages are seconds by the store's clock at the reading; null where there is nothing to age. Texts are
    printable, whoever wrote them into the store."""
    return {
        "schema": "narwhal.cluster",
        "schema_version": 1,
        "cluster": records.cluster,
        "lease": lease_fields(records.lease),
        "routers": _routers(records),
        "ownership_changes": [change_of(entry) for entry in records.changes],
        "claims": [_claim(router_id, text) for router_id, text in sorted(records.claims.items())],
        "totals": sum_of(records.totals),
        "runs": len(records.totals),
        "store": _store(records),
    }


def lease_fields(lease: LeaseView) -> Document:
    """The record without its token: `holder` stands for it. `valid_for_s` is a router's to know: null."""
    fields = lease.fields or {}
    return _printable(
        {
            "state": lease.state.value if lease.state else "none",
            "holder": public_holder(lease),
            "router_id": lease.owner,
            "url": lease.url,
            "control_url": fields.get("control_url", ""),
            "epoch": lease.epoch,
            "highest_epoch": max(lease.epoch, lease.epoch_key),
            "seq": lease.version.seq if lease.version else 0,
            "ttl_s": lease.ttl_ms / 1000 if lease.ttl_ms else None,
            "valid_for_s": None,
            "acquired_age_s": _age_s(lease, lease.acquired_ms),
            "renewed_age_s": _age_s(lease, lease.renewed_ms),
            "reason": lease.reason,
            "successor": lease.successor,
            "replicas": lease.replicas,
            "host": fields.get("host", ""),
            "pid": ProcessMark.of_record(fields).pid,
            "version": fields.get("version", ""),
        }
    )


def _printable(document: Document) -> Document:
    escaped: Document = escaped_document(document)
    return escaped


def _age_s(lease: LeaseView, then_ms: int) -> float | None:
    return round((lease.now_ms - then_ms) / 1000, 3) if then_ms else None


def _routers(records: ClusterRecords) -> list[Document]:
    rows = [
        {
            "router_id": one.router_id,
            "url": one.url,
            "control_url": one.control_url,
            "role": one.role,
            "epoch": one.epoch,
            "mirror": f"{one.mirror_epoch}-{one.mirror_n}",
            "mirror_age_s": one.mirror_age_s,
            "version": one.version,
            "ready_to_take": one.ready_to_take,
            "drift": list(one.drift),
            "resident": one.resident,
            "seen_s": max(0.0, round((records.lease.now_ms - one.seen_ms) / 1000, 3)),
        }
        for one in records.routers
    ]
    return sorted(rows, key=lambda row: str(row["router_id"]))


def change_of(entry: LogEntry) -> Document:
    """One entry of the log. `at`: Unix seconds by the store's clock."""
    body = entry.body
    return _printable(
        {
            "kind": entry.kind.value,
            "epoch": entry.position.epoch,
            "router_id": str(body.get("owner") or ""),
            "at": (count(body.get("at_ms")) or 0) / 1000,
            "reason": str(body.get("reason") or ""),
            "successor": str(body.get("successor") or ""),
        }
    )


def _claim(router_id: str, text: str) -> Document:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    claim: Mapping[str, Any] = found if isinstance(found, dict) else {"reason": text}
    reason = shown(str(claim.get("reason", "")), most=_REASON_CHARS)
    return {"router_id": shown(router_id), "epoch": count(claim.get("epoch")), "reason": reason}


def _store(records: ClusterRecords) -> Document:
    info = records.server.info
    return {
        "mode": records.server.mode,
        "latency_ms": records.server.latency_ms,
        "failures": None,
        "version": info.get("valkey_version") or info.get("redis_version", ""),
        "server": "valkey" if "valkey_version" in info else "redis",
        "role": records.lease.role,
        "connected_replicas": records.lease.connected_replicas,
        "append_only": info.get("aof_enabled", "0") != "0",
        "maxmemory_policy": info.get("maxmemory_policy", ""),
        "warnings": list(records.server.warnings),
    }
