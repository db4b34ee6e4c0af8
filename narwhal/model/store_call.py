"""What the store ports are asked, and what the feed and the registry hand over: values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from narwhal.model.handoff import EntryKind, LogEntry, LogPosition
from narwhal.model.lease import LeaseVersion, OwnerMeta
from narwhal.model.process import UNKNOWN_PROCESS, ProcessMark


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """`expected`: the version watched unchanged, under the incarnation `inc` (both from a LeaseView).

    Both are compared always, also for a released lease: whether it had to be watched is the
    candidate's to judge (`LeaseView.released_for_sure`). A new token for every acquisition.
    """

    token: str = field(repr=False)
    meta: OwnerMeta
    expected: LeaseVersion
    inc: str
    floor: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class RenewRequest:
    """`seq`: higher at every attempt. `life`: that of the last reply confirmed before the deadline."""

    token: str = field(repr=False)
    meta: OwnerMeta
    epoch: int
    seq: int
    life: str = field(repr=False)
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """One snapshot: the encoded `document`, log applied up to `upto`, as number `seq` of `epoch`.

    (epoch, seq) must be above the stored ones.
    """

    token: str = field(repr=False)
    epoch: int
    seq: int
    upto: LogPosition
    document: bytes


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """One log entry at `position` (`<epoch>-<n>`): its `kind` and its body, a msgpack-able mapping.

    `confirmed`: replicas must have it, as with a snapshot, before it is answered.
    """

    token: str = field(repr=False)
    position: LogPosition
    kind: EntryKind
    body: Mapping[str, Any]
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class FeedBatch:
    """What one blocking read of the log brought. `gap`: entries between were trimmed, lost or unreadable,
    or the server's incarnation changed: read the document again and go on from its `upto`. A gap that is
    still there right after that cannot be healed: take what came. `entries` may be empty. `top`: the
    log's newest id after the read: read to its end when that is the last entry's, or `after` itself."""

    entries: Sequence[LogEntry]
    gap: bool
    inc: str
    top: LogPosition


@dataclass(frozen=True, slots=True)
class RouterEntry:
    """One router as it tells of itself (`router:<id>`): advisory, for people and for ordering."""

    router_id: str
    run: str
    role: str
    url: str
    control_url: str = ""
    epoch: int = 0
    mirror_epoch: int = 0
    mirror_n: int = 0
    mirror_age_s: float | None = None
    resident: int = 0
    ready_to_take: bool = False
    drift: tuple[str, ...] = ()
    version: str = ""
    config_digest: str = ""
    contract_digest: str = ""
    section_digests: Mapping[str, str] = field(default_factory=dict)
    voters: str = ""
    schema_version: int = 0
    process: ProcessMark = UNKNOWN_PROCESS
    seen_ms: int = 0
