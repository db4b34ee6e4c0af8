"""The ports: what orchestration (serving, monitor, cluster, api) knows of the outside.

Each port has two implementations that pass one contract suite (tests/contract): the real one and an
in-memory twin that ships in the package. Data moves as the frozen values of `narwhal.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Protocol

from narwhal.errors import EngineError
from narwhal.model.attestation import Attestation
from narwhal.model.cluster_view import ClusterStatus
from narwhal.model.control import ControlStatus
from narwhal.model.decoding import DecodeSeen
from narwhal.model.effect import Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import Evidence
from narwhal.model.handoff import CheckpointRecord, LogEntry, LogPosition, StoredHandoff
from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion
from narwhal.model.identity import EngineIdentity
from narwhal.model.lease import (
    AcquireReply,
    AppendReply,
    LeaseVersion,
    LeaseView,
    Lost,
    PublishReply,
    RenewReply,
)
from narwhal.model.monitoring import GaugeSample, StageReport
from narwhal.model.request import Counters, InferenceRequest, Outcome, RequestRow
from narwhal.model.store_call import (
    AcquireRequest,
    AppendRequest,
    FeedBatch,
    PublishRequest,
    RenewRequest,
    RouterEntry,
)

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

    def overruled(self, iid: str, epoch: int) -> bool:
        """The engine refused our epoch because it knows the higher `epoch` of our cluster.

        True: it is above ours, and this router's ownership has ended with this call. False: it proves
        nothing (another router's past, a lie, no cluster at all).
        """

    async def decided(self, timeout_s: float) -> None:
        """Waits while it is open who owns the fleet, `timeout_s` at most; never raises.

        Open means: this router yields, or stands by and saw the lease released (cluster.md section 5).
        Returns at once otherwise. Ask it only after `may_admit` was false, and ask `may_admit` again.
        """


class ControlView(Protocol):
    """Leadership in full, for documents and /ready. Memory only; implemented beside the gate."""

    def status(self, now: float) -> ControlStatus: ...

    def lease_valid_s(self, now: float) -> float | None:
        """Seconds for which this router trusts its lease; None where it trusts none."""

    def cluster(self, now: float) -> ClusterStatus:
        """The routers, the lease and the store as last seen; without a store: this router alone."""


# --- engines, data plane ---------------------------------------------------------------------------


# Not frozen, like all that is made several times a request: a frozen one costs thrice as much to make.
@dataclass(slots=True)
class EngineCall:
    """One HTTP exchange with one engine.

    `rid` becomes `x-request-id`, `leg` `x-narwhal-leg`; the client adds the bearer, `x-narwhal-epoch`
    and content headers. Seconds: `connect_s` and `pool_s` bound getting a connection, `total_s` the
    whole exchange (None: the caller watches the stream itself); `spare_s` is by how much more a standstill of
    our own may prolong it. `permit` is called right before the
    head leaves, with no `await` between; what it raises ends the call and nothing has been sent. Waiting
    for a seat or a connection can outlast a lease or a KV handoff, so the last look belongs there.
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
    permit: Callable[[], None] | None = None
    spare_s: float = 0.0


@dataclass(slots=True)
class EngineReply:
    """A whole answer, whatever its status. Header names are lower case.

    `not_before` (Clock.now): the engine may have made it as early as that, however late it was read, for
    nothing of it had come by then, or its `date` told of an earlier moment. -inf: nobody noted it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    not_before: float = -inf


class EventKind(Enum):
    """What one SSE event of a decode stream is, by real decoding (never by a search alone)."""

    ROLE = "role"
    """Chat's opening event: a role and nothing generated."""
    OUTPUT = "output"
    """Carries a choice: generated output, its text may be empty."""
    FINISH = "finish"
    """A choice with a finish reason, which is a text and not empty: some engines write "" for null."""
    USAGE = "usage"
    """`choices` empty, `usage` an object: the event behind the last choice."""
    ERROR = "error"
    """The engine's error object inside the stream."""
    DONE = "done"
    """`data: [DONE]`, the terminal marker."""
    OTHER = "other"
    """Comments, blank keep-alives, documents without a choice."""

    __hash__ = object.__hash__
    """Enum's own is a Python function, called at every look-up."""


@dataclass(slots=True)
class StreamEvent:
    """One whole event, `raw` as it came (with its blank line).

    `document` is the decoded object (None for DONE and comments); but for an ERROR its choices and their
    texts have the types of the API. `usage` holds `prompt_tokens` and `completion_tokens` as the engine told
    them, wherever the event has that object.
    """

    kind: EventKind
    raw: bytes
    document: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None


class LegFlow(Protocol):
    """Handle on the open leg for whoever takes its events; for calls from within a sink too."""

    @property
    def passed(self) -> int:
        """Events that went past the sink (`pass_chunks`)."""

    @property
    def paused(self) -> bool:
        """Reading is stopped now."""

    @property
    def pauses(self) -> int:
        """How often reading was stopped so far."""

    def pause(self) -> None:
        """Stops reading from the engine at once; silence while paused is not counted."""

    def resume(self) -> None: ...

    def pass_chunks(self, write: Callable[[bytes], None]) -> None:
        """From now on a read that is one plain event in one HTTP/1.1 chunk goes to `write` as it is,
        framing included. Everything else still comes to the sink."""

    def fail(self, error: EngineError) -> None:
        """Closes the engine connection at once; `EngineClient.stream` raises `error`."""


class StreamSink(Protocol):
    """Takes a decode leg's events, each call inside the read that brought them; never waits.

    Until the first OUTPUT or FINISH event (and always with `StreamCall.decode_events`) every event
    comes through `on_events`. After that a read whose events are all plain (a choice, finish reason
    null, no error) comes through `on_plain`, undecoded.
    """

    def on_open(self, flow: LegFlow) -> None:
        """The engine answered 200 and an event stream follows."""

    def on_plain(self, data: bytes, events: int) -> None:
        """`events` plain events, back to back in `data`."""

    def on_events(self, events: Sequence[StreamEvent]) -> None:
        """All events that one read completed, in order; at least one is not plain. Never empty.

        Nothing follows DONE.
        """


@dataclass(slots=True)
class StreamCall:
    """A decode leg. `first_output_s` counts from dispatch to the first OUTPUT or FINISH event,
    `silence_s` between whole events with data after that (0 = off): comments, blank lines and pieces of an
    event are silence. `call.total_s` bounds it all (None = unbounded)."""

    call: EngineCall
    first_output_s: float
    silence_s: float = 0.0
    decode_events: bool = False


class EngineClient(Protocol):
    """Calls on the data pool. Closes with the router.

    Raises EngineUnreachable, EngineTimeout, PoolExhausted or StreamBroken(kind="too_large").
    Cancelling the caller closes the engine connection at once, whatever was going on.
    """

    async def fetch(self, call: EngineCall) -> EngineReply:
        """One whole answer. A status is an answer, never an exception here."""

    async def stream(self, call: StreamCall, sink: StreamSink) -> None:
        """Runs a decode leg to its DONE event.

        Raises also EngineRefused (a status other than 200; the sink saw nothing), StreamBroken
        (malformed event, end without DONE, event over the response limit) and what the sink gave to
        `LegFlow.fail`. What a finish reason or an error object means is the sink's business.
        """

    async def aclose(self) -> None: ...


class DecodeWatch(Protocol):
    """The open decode streams, as the monitor reads them. Implemented by serving."""

    def look(self) -> Iterator[None]:
        """Counts what every open stream brought since the last look, in pieces: let others run between."""

    def take(self) -> Sequence[DecodeSeen]:
        """What was counted since the last call, by engine; engines without a new observation are left out.

        Also of streams that have ended meanwhile.
        """


@dataclass(slots=True)
class KvDescriptor:
    """A validated KV handoff. `params` is opaque and travels whole, values unchanged.

    `producer` is the producer's own engine ID: it changes when that engine restarts. Its prefill may have
    completed, and its lease begun, as early as `since` (Clock.now). -inf: nobody knows, it is too old.
    """

    producer: str
    params: Mapping[str, Any]
    since: float = -inf


class Dialect(Protocol):
    """How one kind of engine is spoken to (engines.md section 1): bodies out, answers in. Pure."""

    def prefill_body(self, request: InferenceRequest) -> bytes: ...

    def read_prefill(self, reply: EngineReply, iid: str) -> KvDescriptor:
        """Raises EngineRefused (any status but 200), StreamBroken(kind="error_object" or "malformed")
        and HandoffInvalid; a descriptor that is returned may be sent to an engine."""

    def decode_body(self, request: InferenceRequest, descriptor: KvDescriptor | None) -> bytes:
        """Always streaming, usage always asked for. None: decode on the producer itself."""

    def read_decode(self, reply: EngineReply, iid: str) -> None:
        """Judges a decode leg of `/v1/completions` that was collected whole. Raises EngineRefused or
        StreamBroken unless it is a stream with output that came to its clean end: a good finish reason, then
        the terminal marker."""

    def tokenize_body(self, request: InferenceRequest) -> bytes:
        """Body of `POST /tokenize` for a text or chat request."""

    def read_tokenize(self, reply: EngineReply, iid: str) -> int:
        """Prompt tokens. Raises EngineRefused or StreamBroken(kind="malformed")."""


class ControlClient(Protocol):
    """Health, probes, identity and attestation: the control pool, never the data pool.

    Each call is one whole exchange under `x-narwhal-leg: probe`, our epoch and a fresh `x-request-id`. A
    status is an answer, but for a 409 `stale_epoch`: that raises StaleEpoch. Raises also
    EngineUnreachable, EngineTimeout, StreamBroken, and PoolExhausted when this pool has no free connection
    within `timeout_s`, which says nothing about the engine. A wait for a connection leaves the engine its
    whole `timeout_s`.
    """

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply: ...

    async def post(self, iid: str, path: str, *, body: bytes, timeout_s: float) -> EngineReply:
        """`body` is JSON. An event stream is collected to its end."""

    async def aclose(self) -> None: ...


class Identities(Protocol):
    """Which process an engine is, from itself and from its sidecar; the control pool. Closes with the router.

    `timeout_s` bounds each exchange. Both raise the EngineErrors of `ControlClient`, IdentityError for an
    answer that tells nothing, and AttestationInvalid for what a sidecar should not say. `policy.identity`
    compares; fetch the attestation first, since only a later look at the engine proves it.
    """

    async def identity(self, iid: str, *, timeout_s: float) -> EngineIdentity: ...

    async def attestation(self, iid: str, *, timeout_s: float) -> Attestation:
        """Of an engine with an `attestation_url`. Carries no credential."""

    async def aclose(self) -> None: ...


class EvidenceSink(Protocol):
    """Where what happened to an engine is said: judged at once, acted on beside the caller."""

    def report(self, evidence: Evidence) -> bool:
        """Never waits. True: the request behind a LegFailed is suspected poison, it is not to be retried."""


# --- the shared store ------------------------------------------------------------------------------


class LeaseStore(Protocol):
    """The lease record (cluster.md section 4). Every operation is idempotent by token, seq or version.

    Raises StoreUnreachable for *no answer* (it may still happen later) and StoreProtocolError for a
    server that cannot be used. Losing is a return value. `timeout_s` bounds one attempt; there are no
    retries inside. After a cancelled or timed-out call the connection is dropped.

    Acquire and renew count only when enough replicas have them: fewer is *no answer* too.
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

    async def depose(self, expected: LeaseVersion, *, reason: str, timeout_s: float) -> bool:
        """An operator's: ends a tenure and lowers the replica count to those in step. False: another version.

        Others still watch it for T.
        """

    async def aclose(self) -> None: ...


class HandoffStore(Protocol):
    """Document, log and totals (the data connection). Errors as LeaseStore."""

    async def publish(self, request: PublishRequest, *, timeout_s: float) -> PublishReply: ...

    async def load(self, *, timeout_s: float) -> StoredHandoff | None: ...

    async def append(self, request: AppendRequest, *, timeout_s: float) -> AppendReply: ...

    async def read_log(
        self, after: LogPosition, *, through: LogPosition | None = None, timeout_s: float
    ) -> Sequence[LogEntry]:
        """The oldest entries above `after`, up to `through` (None: the end), at most 500; may be empty.

        Reads back one refused append, and the log to its end: call again after the last one until empty.
        """

    async def flush_totals(self, runs: Mapping[str, Counters], *, timeout_s: float) -> Mapping[str, Counters]:
        """Absolute counters of every run known here; returns the greater of each field for all runs.

        The key `base` holds runs folded in. The total is the sum of all values.
        """

    async def aclose(self) -> None: ...


class LogFeed(Protocol):
    """The log as a standby reads it (the feed connection). Errors as LeaseStore."""

    async def read(self, after: LogPosition, *, block_s: float) -> FeedBatch:
        """Waits at most `block_s` (0.5 at most) for entries above `after`."""

    async def aclose(self) -> None: ...


class Registry(Protocol):
    """Who is there (cluster.md section 3). An entry lives 15 s unless announced again."""

    async def announce(self, entry: RouterEntry, *, timeout_s: float) -> bool:
        """False: the entry of another run lives under this ID, nothing was written."""

    async def withdraw(self, router_id: str, run: str, *, timeout_s: float) -> None:
        """Deletes the entry if it is still that run's."""

    async def routers(self, *, timeout_s: float) -> Sequence[RouterEntry]: ...

    async def entry(self, router_id: str, *, timeout_s: float) -> RouterEntry | None:
        """That of one router, without the list; None: there is none that lives and can be read."""

    async def put_claim(self, router_id: str, *, epoch: int, reason: str, timeout_s: float) -> bool:
        """Claims the lease of the degraded owner of `epoch`; reason "" withdraws. An acquire deletes all.

        False: that epoch holds the lease no more, nothing was put.
        """

    async def aclose(self) -> None: ...


class Peers(Protocol):
    """Other routers, asked directly. Each call has one loop; None: no answer that can be read in time."""

    async def ready(self, url: str, *, timeout_s: float) -> PeerReady | None:
        """The router's /ready. It learns who asked."""

    async def pledge(self, url: str, question: PledgeQuestion, *, timeout_s: float) -> PledgeAnswer | None:
        """Asks a voter not to acquire. `url` is where it takes orders."""

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

    def request(self, row: RequestRow, outcome: Outcome) -> None:
        """Once per request, at its end, with the row complete; it must not change afterwards.

        One call of a few µs on the loop: journals the row, counts the outcome, observes the times.
        """

    def event(self, kind: str, fields: Mapping[str, Any], *, repeated: bool = False) -> None:
        """`kind`: role_change, hold, ejection, readmission, drain, ownership, monitoring_stage_failure...

        `repeated`: it goes on as it was told before. It is journaled and counted, and the log has it already.
        """


class Metrics(Protocol):
    """The registry of `narwhal_*` as the monitor feeds it and /metrics reads it."""

    def gauges(self, sample: GaugeSample) -> None: ...

    def stage(self, report: StageReport) -> None:
        """Counts one stage of one monitor pass by stage and outcome."""

    def verdict(self, told: Told) -> None:
        """Counts one transition of an engine, detected and enforced apart."""

    def render(self) -> bytes:
        """Prometheus text."""


class ClientStream(Protocol):
    """The response side of one client request, with the transport's flow control.

    `start` sends status and headers once; without it nothing has left and a proper HTTP error through
    plain ASGI is still possible. Data are whole SSE events; one call is one write. Calls after the
    client has gone do nothing.
    """

    @property
    def started(self) -> bool: ...

    @property
    def gone(self) -> bool: ...

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call it once, when the request body has been read. `on_gone` fires at most once and only
        before `finish`; at once if the client has gone already."""

    def pace(self, *, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        """Who is to stop above the transport's high-water mark and go on below its low-water mark.

        A later call replaces the earlier; `on_pause` is called at once if it stands above the mark.
        """

    def start(
        self, status: int, headers: Sequence[tuple[str, str]], *, data: bytes = b"", last: bool = False
    ) -> None:
        """Head and first data in one write; `last`: and the end of the response. Header names are lower case.

        `content-length` frames the body in place of chunks; `connection: close` ends the connection
        behind the response.
        """

    def write(self, data: bytes) -> None: ...

    @property
    def chunk_writer(self) -> Callable[[bytes], None] | None:
        """Takes bytes in ready HTTP/1.1 chunk framing; None where that is not possible.

        For use between `start` and `finish`; when the client goes, `on_pause` is called before anything
        else, and nothing may be written after that.
        """

    def finish(self, data: bytes = b"") -> None:
        """Last data and the end of the response in one write."""


class Inbound(Protocol):
    """One client request of which only the head has been read. `arrived_wall` is Unix seconds."""

    @property
    def rid(self) -> str:
        """Our ID for the client, the response's `x-request-id`."""

    @property
    def client_rid(self) -> str | None: ...

    @property
    def arrived_wall(self) -> float: ...

    @property
    def stream(self) -> ClientStream: ...

    async def read(self) -> InferenceRequest:
        """Reads and validates the body. Raises RequestError; CancelledError when the client has left."""


class RequestHandler(Protocol):
    """Serves one client request to its end. Implemented by serving, used by api."""

    async def serve(self, inbound: Inbound) -> None:
        """Returns after the whole answer went to `inbound.stream`. Raises the NarwhalError that the
        client has to be told, as a response or, once the stream has started, as its last event."""
