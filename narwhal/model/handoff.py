"""The router state that travels: handoff document, stored form, log entries, checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from narwhal.model.request import Counters

HANDOFF_SCHEMA = "narwhal.handoff"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class HandoffDocument:
    """`narwhal.handoff` v1 (http-api.md section 4, failures.md section 11), decoded.

    `extra` carries every top-level field that this version has no owner for, value unchanged, so that
    a newer router's fields survive a passage through us.
    """

    at: float
    run: str
    model: str
    epoch: int
    holder: str
    engines: tuple[str, ...]
    roles: Mapping[str, str]
    ejected: tuple[str, ...] = ()
    ejections: Mapping[str, Any] = field(default_factory=dict)
    """Engine ID to {reason, step, detail}, for those in `ejected`."""
    inference_sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inference_holds: Mapping[str, Any] = field(default_factory=dict)
    """Engine ID to {reason, consumer}, for those in `inference_sources`; consumer: who is to pull from a
    suspect producer in its probe, "" = nobody."""
    counters: Counters = field(default_factory=Counters)
    lifecycle: Mapping[str, Any] = field(default_factory=lambda: {"wave": None, "records": []})
    demand_risk: Mapping[str, Any] | None = None
    holds: Mapping[str, Any] = field(default_factory=dict)
    streaks: Mapping[str, Any] = field(default_factory=dict)
    edges: Any = field(default_factory=list)
    kv_ledger: Any = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Stream id `<epoch>-<n>`; ordered. (0, 0) is before everything."""

    epoch: int = 0
    n: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}-{self.n}"

    def __lt__(self, other: LogPosition) -> bool:
        return (self.epoch, self.n) < (other.epoch, other.n)

    def __le__(self, other: LogPosition) -> bool:
        return (self.epoch, self.n) <= (other.epoch, other.n)

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        """Raises ValueError on anything but `<digits>-<digits>`."""
        epoch, _, n = text.partition("-")
        if not (text.isascii() and epoch.isdigit() and n.isdigit()):
            raise ValueError("no stream id")
        return cls(int(epoch), int(n))


LOG_START = LogPosition()


class EntryKind(StrEnum):
    ACQUIRED = "acquired"
    RELEASED = "released"
    DELTA = "delta"
    SNAPSHOT = "snapshot"
    UNREADABLE = "unreadable"
    """Damaged, or of a kind that only a newer version knows: never written, a gap for its reader."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log. `body` is decoded msgpack: a delta maps changed top-level fields of the
    document to their whole new values; a snapshot has {seq, upto}; acquired and released have
    {owner, at_ms, ...}."""

    position: LogPosition
    kind: EntryKind
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredHandoff:
    """The `handoff` hash. `document` is JSON text, unparsed; `now_ms` the server's time at the read and
    `inc` its incarnation then, `written_inc` the one that took the document ("": not told)."""

    epoch: int
    seq: int
    upto: LogPosition
    at_ms: int
    now_ms: int
    schema_version: int
    document: bytes
    inc: str
    intact: bool
    """False when crc32 does not match the document: torn."""
    written_inc: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The local file: the document (JSON object as stored) and what must outlive Redis.

    `document` is empty where the router has none yet. `boot_id` and `boottime_s` tell the age of the
    document on the same boot, else it is unknown. `totals` are the counters of every router run known: the
    document tells only their sum.
    """

    document: Mapping[str, Any]
    seq: int = 0
    applied_n: int = 0
    epoch_floor: int = 0
    ttl_ms_max: int = 0
    boot_id: str = ""
    boottime_s: float = 0.0
    totals: Mapping[str, Counters] = field(default_factory=dict)
    source: str = field(default="checkpoint", compare=False)
    """Where it was read, for messages; not written."""
