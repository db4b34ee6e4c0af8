"""The ownership record in Redis and what the lease scripts answer (cluster.md sections 2 to 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from narwhal.model.handoff import LOG_START, LogPosition
from narwhal.model.process import ProcessMark

MAX_EPOCH = 2**52
"""Epochs above this are never granted and refused as floors: Lua numbers stay exact below 2^53."""


def holder_of(router_id: str, token: str) -> str:
    """`<router-id>:<first 16 hex of the token's sha256>`: tells ownerships apart, never shows the token."""
    return f"{router_id}:{hashlib.sha256(token.encode()).hexdigest()[:16]}"


class LeaseState(StrEnum):
    HELD = "held"
    RELEASED = "released"
    VACANT = "vacant"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of one server: changes with a restart, a promotion or a resynchronisation."""

    run_id: str
    replid: str

    def __str__(self) -> str:
        return f"{self.run_id}/{self.replid}"


@dataclass(frozen=True, slots=True)
class LeaseVersion:
    """`token:seq`: never the same twice. A candidate swaps only on a version it has seen unchanged."""

    token: str = field(repr=False)
    seq: int

    def __str__(self) -> str:
        return f"{self.token}:{self.seq}"


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One peek. `state`, `version` are None where nothing is stored; `inc` is always the server's own.

    `record_inc` is the incarnation stored in the record; `sure` says that the last renewal confirmed
    record's life. `epoch` is the record's, `epoch_key` that of the `epoch` key. `role` is the
    server's replication role ("master" or "slave"), `connected_replicas` those in step now, `replicas` the
    highest count stored; `deposed`: an operator ended that tenure and lowered the count. `log_top` is the
    newest id ever given to the log, (0, 0) without a log.
    Millisecond fields are Redis time: for people and ages, never ownership.
    """

    inc: Incarnation
    role: str
    state: LeaseState | None = None
    version: LeaseVersion | None = None
    epoch: int = 0
    epoch_key: int = 0
    epoch_key_damaged: bool = False
    """It holds no epoch, or is of another type: it counts as 0."""
    owner: str = ""
    url: str = ""
    ttl_ms: int = 0
    acquired_ms: int = 0
    renewed_ms: int = 0
    now_ms: int = 0
    record_inc: str = ""
    sure: bool = False
    successor: str = ""
    reason: str = ""
    prior_epoch: int = 0
    """Of a held record: the epoch that was released for it, 0 for none; `prior_reason` says why it was,
    `prior_owner` by whom, `prior_released_ms` when (0: not told)."""
    prior_reason: str = ""
    prior_owner: str = ""
    prior_released_ms: int = 0
    released_ms: int = 0
    replicas: int = 0
    connected_replicas: int = 0
    deposed: bool = False
    log_top: LogPosition = LOG_START
    fields: Mapping[str, str] | None = field(default=None, repr=False)
    """The whole record as stored: proof of death reads host, boot_id, pid... from it."""

    @property
    def released_for_sure(self) -> bool:
        """May be taken without a watch: released, by this very server incarnation, with `sure`."""
        return self.state is LeaseState.RELEASED and self.sure and self.record_inc == str(self.inc)


@dataclass(frozen=True, slots=True)
class OwnerMeta:
    """What a holder writes about itself: advisory, for people, clients' redirects and proof of death."""

    router_id: str
    url: str
    control_url: str = ""
    host: str = ""
    machine_id: str = ""
    boot_id: str = ""
    pidns: str = ""
    pid: int = 0
    pid_start: str = ""
    version: str = ""

    @property
    def process(self) -> ProcessMark:
        return ProcessMark(
            host=self.host,
            machine_id=self.machine_id,
            boot_id=self.boot_id,
            pidns=self.pidns,
            pid=self.pid,
            pid_start=self.pid_start,
        )


# --- replies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquired:
    """OK or AGAIN (`again`: this token already held it; its deadline counts from its *first* send).

    `replicas`: the highest count known, stored now. Here and in the replies to a renewal.
    """

    epoch: int
    life: str = field(repr=False)
    again: bool = False
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class HeldBy:
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class NewServer:
    """The server's incarnation is another than the one the candidate watched: watch anew."""

    inc: str


@dataclass(frozen=True, slots=True)
class NothingStored:
    """No record at all: plant a marker and watch it."""


@dataclass(frozen=True, slots=True)
class BadFloor:
    """The floor, or the epoch to be granted, is above MAX_EPOCH: alarmed, never granted."""


AcquireReply = Acquired | HeldBy | NewServer | NothingStored | BadFloor


@dataclass(frozen=True, slots=True)
class Renewed:
    """OK. `claims`: router ID -> its claim as JSON text, may be empty."""

    life: str = field(repr=False)
    claims: Mapping[str, str]
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Reinstated:
    """The record was lost or had gone back and is ours again: publish a snapshot at once."""

    life: str = field(repr=False)
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Stale:
    """A seq not above the stored one: nothing was written. It is no answer."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The token does not hold the lease (any more). Final from renew.

    From append and publish it is final only if `epoch` is not below one's own: a record that was lost
    or went back in time (state "" or vacant, or a lower epoch) is the next renewal's to reinstate.
    """

    state: str = ""
    epoch: int = 0
    owner: str = ""


RenewReply = Renewed | Reinstated | Stale | Lost


@dataclass(frozen=True, slots=True)
class Appended:
    id: str


@dataclass(frozen=True, slots=True)
class TopIs:
    """Refused: the log's newest id. Higher epoch: a floor; our own: read back, compare, go on above."""

    id: str


AppendReply = Appended | TopIs | Lost


@dataclass(frozen=True, slots=True)
class Published:
    """`id`: of the snapshot's own log entry; the owner's next append is above it."""

    id: str


@dataclass(frozen=True, slots=True)
class OldEpoch:
    """The stored handoff or the log is newer. A higher `epoch` is a floor: acquire again with it, new
    token. One's own epoch: that seq, or a higher one, is stored already."""

    epoch: int


PublishReply = Published | OldEpoch | Lost


@dataclass(frozen=True, slots=True)
class Leadership:
    """What this router believes of its own ownership, trusted only until `valid_until` (Clock.now)."""

    epoch: int
    token: str = field(repr=False)
    life: str = field(repr=False)
    valid_until: float
