"""The ports: what orchestration (serving, monitor, cluster, api) knows of the outside.

Each port has two implementations that pass one contract suite (tests/contract): the real one and an
in-memory twin that ships in the package. Data moves as the frozen values of `narwhal.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from narwhal.model.cluster_view import ClusterStatus
from narwhal.model.control import ControlStatus
from narwhal.model.engine import Leg
from narwhal.model.handoff import CheckpointRecord, LogEntry, LogPosition, StoredHandoff
from narwhal.model.lease import (
    AcquireReply,
    AppendReply,
    LeaseVersion,
    LeaseView,
    Lost,
    OwnerMeta,
    PublishReply,
    RenewReply,
)
from narwhal.model.monitoring import GaugeSample, StageReport
from narwhal.model.request import Counters, RequestRow

# --- leadership ------------------------------------------------------------------------------------


class ControlGate(Protocol):
    """All that serving, monitor and api know of leadership. Reads memory only, never waits."""

    @property
    def epoch(self) -> int: ...

    @property
    def holder(self) -> str:
        """`<router-id>:<16 hex of sha256(token)>`, "" without HA."""

    def may_admit(self, now: float) -> bool:
        """True while this router owns the fleet by its own clock at this instant.

        Call it with a fresh `now` and no `await` before the act that it permits.
        """

    def refusal(self, now: float) -> str:
        """Why `may_admit` is false, in the words of http-api.md section 3; "" when it is true."""


class ControlView(Protocol):
    """Leadership in full, for documents and /ready. Memory only; implemented beside the gate."""

    def status(self, now: float) -> ControlStatus: ...

    def cluster(self, now: float) -> ClusterStatus:
        """The routers, the lease and the store as last seen; without a store: this router alone."""


# --- engines, data plane ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One HTTP exchange with one engine.

    `rid` becomes `x-request-id`, `leg` `x-narwhal-leg`; the client adds the bearer, `x-narwhal-epoch`
    and content headers. Seconds: `connect_s` and `pool_s` bound getting a connection, `total_s` the
    whole exchange (None: the caller watches the stream itself).
    """

    iid: str
    method: str
    path: str
    leg: Leg
    rid: str
    body: bytes = b""
    traceparent: str | None = None
    connect_s: float = 10.0
    pool_s: float = 5.0
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineReply:
    """A whole answer, whatever its status. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# The streaming half of EngineClient (open a decode leg, sink callbacks) lives in this section too.


class EngineClient(Protocol):
    """Calls on the data pool. Closes with the router.

    Raises EngineUnreachable, EngineTimeout, PoolExhausted or StreamBroken(kind="too_large"). A status
    is an answer, never an exception here. Cancelling the caller closes the connection at once.
    """

    async def fetch(self, call: EngineCall) -> EngineReply: ...

    async def aclose(self) -> None: ...


class ControlClient(Protocol):
    """Health, probes, identity and attestation: the control pool, never the data pool."""

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply: ...

    async def aclose(self) -> None: ...


# --- the shared store ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """`expected`: the version watched unchanged, under the incarnation `inc` (both from a LeaseView)."""

    token: str
    meta: OwnerMeta
    expected: LeaseVersion
    inc: str
    floor: int
    ttl_ms: int
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class RenewRequest:
    """`seq`: higher at every attempt. `life`: that of the last reply confirmed before the deadline."""

    token: str
    meta: OwnerMeta
    epoch: int
    seq: int
    life: str
    ttl_ms: int
    replicas: int = 0


class LeaseStore(Protocol):
    """The lease record (cluster.md section 4). Every operation is idempotent by token, seq or version.

    Raises StoreUnreachable for *no answer* (it may still happen later) and StoreProtocolError for a
    server that cannot be used. Losing is a return value. `timeout_s` bounds one attempt; there are no
    retries inside. After a cancelled or timed-out call the connection is dropped.
    """

    async def peek(self, *, timeout_s: float) -> LeaseView: ...

    async def claim(self, nonce: str, *, floor: int, ttl_ms: int, timeout_s: float) -> bool:
        """Plants a vacant marker; raises the epoch key to `floor`. False: something is there already."""

    async def acquire(self, request: AcquireRequest, *, timeout_s: float) -> AcquireReply: ...

    async def renew(self, request: RenewRequest, *, timeout_s: float) -> RenewReply: ...

    async def release(
        self, held: str | LeaseVersion, *, reason: str, successor: str = "", timeout_s: float
    ) -> bool | Lost:
        """By token (the holder, its warden) or by exact version (proof of death). True: released."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """One snapshot: the encoded `document`, log applied up to `upto`, as number `seq` of `epoch`."""

    token: str
    epoch: int
    seq: int
    upto: LogPosition
    document: bytes


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """One log entry at `position` (`<epoch>-<n>`): its `kind` and its body, a msgpack-able mapping."""

    token: str
    position: LogPosition
    kind: str
    body: Mapping[str, Any]


class HandoffStore(Protocol):
    """Document, log and totals (the data connection). Errors as LeaseStore."""

    async def publish(self, request: PublishRequest, *, timeout_s: float) -> PublishReply: ...

    async def load(self, *, timeout_s: float) -> StoredHandoff | None: ...

    async def append(self, request: AppendRequest, *, timeout_s: float) -> AppendReply: ...

    async def flush_totals(self, runs: Mapping[str, Counters], *, timeout_s: float) -> Mapping[str, Counters]:
        """Absolute counters of every run known here; returns the greater of each field for all runs.

        The key `base` holds runs folded in. The total is the sum of all values.
        """

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FeedBatch:
    """What one blocking read of the log brought. `gap`: entries between were trimmed or lost, or the
    server's incarnation changed: read the document again. `entries` may be empty."""

    entries: Sequence[LogEntry]
    gap: bool
    inc: str


class LogFeed(Protocol):
    """The log as a standby reads it (the feed connection). Errors as LeaseStore."""

    async def read(self, after: LogPosition, *, block_s: float) -> FeedBatch: ...

    async def aclose(self) -> None: ...


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
    seen_ms: int = 0


class Registry(Protocol):
    """Who is there (cluster.md section 3). An entry lives 15 s unless announced again."""

    async def announce(self, entry: RouterEntry, *, timeout_s: float) -> None: ...

    async def withdraw(self, router_id: str, run: str, *, timeout_s: float) -> None:
        """Deletes the entry if it is still that run's."""

    async def routers(self, *, timeout_s: float) -> Sequence[RouterEntry]: ...

    async def aclose(self) -> None: ...


class Checkpoint(Protocol):
    """The local fallback file. Synchronous: callers on the loop use a thread."""

    def read(self) -> CheckpointRecord | None:
        """None: there is no file. Raises SavedStateError naming file and field on anything unreadable."""

    def write(self, record: CheckpointRecord) -> None:
        """Atomic and durable, or OSError with the old file left as it was."""


class StatePublisher(Protocol):
    """Writes the owner's state where a successor finds it. Implemented by cluster, used by monitor."""

    async def snapshot(self) -> PublishReply | None:
        """Publishes the whole document; None without HA or while not owner. Raises StoreUnreachable."""

    async def checkpoint(self) -> None:
        """Writes the local file in a thread. Raises OSError; the old file is then untouched."""


# --- telemetry -------------------------------------------------------------------------------------


class Recorder(Protocol):
    """Takes what happened; never blocks, never raises, drops and counts when it cannot keep up."""

    def request(self, row: RequestRow) -> None: ...

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """`kind`: role_change, hold, ejection, readmission, drain, ownership, monitoring_stage_failure..."""


class Metrics(Protocol):
    """The registry of `narwhal_*` as the monitor feeds it and /metrics reads it."""

    def gauges(self, sample: GaugeSample) -> None: ...

    def stage(self, report: StageReport) -> None:
        """Counts one stage of one monitor pass by stage and outcome."""

    def render(self) -> bytes:
        """Prometheus text."""


class StreamClosed(Exception):
    """The client has gone: raised by ClientStream writes after `on_gone` fired. Not an error of ours."""


class ClientStream(Protocol):
    """The response side of one client request, with the transport's flow control.

    `start` sends status and headers once; without it nothing has left and a proper HTTP error is
    still possible. `write` takes whole SSE events, one call per engine read. `paused` is true above the
    high-water mark: the relay pauses its engine and goes on when `on_drain` is called.
    """

    @property
    def started(self) -> bool: ...

    @property
    def gone(self) -> bool: ...

    @property
    def paused(self) -> bool: ...

    def watch(self, *, on_gone: Callable[[], None], on_drain: Callable[[], None]) -> None: ...

    def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None: ...

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None: ...
