"""What traffic and probes show about an engine (failures.md): the events that `Fleet.step` takes.

Each is said once, by whoever saw it, and judged in one place. Nothing that is our own fault (our pool, our
loop's lag, a cancelled probe, a stale epoch) is ever made one of these, except as INCONCLUSIVE.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from narwhal.model.engine import Leg


class FailureClass(StrEnum):
    """Classes of leg failures; streaks are counted per engine and class."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    STREAM = "stream"
    OVERLOAD = "overload"
    INFERENCE_STATUS = "inference_status"
    KV_HANDOFF = "kv_handoff"
    LIVENESS = "liveness"


class ProbeOutcome(StrEnum):
    """INCONCLUSIVE: no word about this engine (our own pool, cancelled, the other engine's fault)."""

    GOOD = "good"
    BAD = "bad"
    INCONCLUSIVE = "inconclusive"


# Legs end thousands of times a second; a frozen class costs thrice as much to make.
@dataclass(slots=True)
class LegSucceeded:
    """A prefill whose KV handoff was extracted, or a decode stream that reached its clean end.

    `peer`: the producer of a decode leg that crossed, "" for a local one and for a prefill.
    `remote_engine_id`: the producer's own ID as its KV handoff names it, "" on a decode. `began`: when it was
    dispatched, on Clock.now; inf: just now.
    """

    iid: str
    leg: Leg
    peer: str = ""
    remote_engine_id: str = ""
    began: float = inf


@dataclass(frozen=True, slots=True)
class LegFailed:
    """A leg ended in a failure of the engine. Never about an answer with a 4xx other than 408 and 429.

    `way` names the failure for comparison across engines, such as "inference_status:500" or
    "stream:early_end"; `request` is the digest of the client's body (empty: not a client's request).
    `again`: the request's token count was held against the engine in this class already.
    """

    iid: str
    leg: Leg
    failure: FailureClass
    way: str
    detail: str
    peer: str = ""
    request: bytes = b""
    retry_after_s: float | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class CountFailed:
    """No connection for a token count (`connection`, `timeout`), or no answer to it in time (`timeout`).

    Any other end of a count is no evidence: it is of a route that an engine may lack. `request` is the
    digest of the client's body, empty where the engine never got it.
    """

    iid: str
    failure: FailureClass
    detail: str
    request: bytes = b""


@dataclass(frozen=True, slots=True)
class LegAnswered:
    """The engine answered with a 4xx other than 408 and 429: it is there, whatever it says."""

    iid: str
    leg: Leg
    status: int
    request: bytes = b""


@dataclass(frozen=True, slots=True)
class LegLeft:
    """Nobody waits any longer for a leg that has given nothing yet: its client left, or the request's own
    deadline passed. No failure. `sent_at`: when it went to the engine, on Clock.now. `limit_s`: how long it
    might have taken before it were one."""

    iid: str
    leg: Leg
    sent_at: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class HealthProbed:
    """`GET /health` over the control pool, for a verdict of the breaker or a cautious takeover.

    `streaming`: the engine's streams made progress in the last `engine.health_timeout_s`, so it is alive.
    `number`: as in InferenceProbed.
    """

    iid: str
    outcome: ProbeOutcome
    detail: str = ""
    streaming: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class InferenceProbed:
    """A prefill leg and a decode leg of our own. `peer`: the producer it pulled from, "" = local.

    `status`: that of the answer which failed it, 0 where there was none. `consumer`: who pulled the KV of
    `iid`, in the probe of a suspect producer. `number`: of the asking that it answers (ProbeWanted), 0 where
    nobody asked: it was seen just now, in a probe of something else. `reached` is False where `iid` took no
    connection for its leg: whatever failed, it was no transfer. `own_leg`: that of `iid` failed, so that the
    `consumer` had nothing to pull.
    """

    iid: str
    outcome: ProbeOutcome
    peer: str = ""
    detail: str = ""
    status: int = 0
    consumer: str = ""
    number: int = 0
    reached: bool = True
    own_leg: bool = False


@dataclass(frozen=True, slots=True)
class EdgeProbed:
    """A probe across one producer -> consumer edge, for the edge's own sake."""

    producer: str
    consumer: str
    outcome: ProbeOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LivenessSwept:
    """One engine's answer in the idle health sweep. `streaming` as in HealthProbed."""

    iid: str
    outcome: ProbeOutcome
    detail: str = ""
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """The engine's process start as `/metrics` tells it (Unix seconds, 10 ms steps)."""

    iid: str
    process_start: float


class IdentityOutcome(StrEnum):
    """LIKE: the sidecar vouches for the live process, and it is what the contract wants. SILENT: neither was
    shown, since one of both gave no answer or none that can be read. INCONCLUSIVE: our own doing."""

    LIKE = "like"
    UNLIKE = "unlike"
    SILENT = "silent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Identified:
    """What an engine and its sidecar told together (contracted fleets). `process_start`: of the live process,
    None where it was not told; `detail` says what is unlike, or why nothing was shown. `number`: as in
    InferenceProbed."""

    iid: str
    outcome: IdentityOutcome
    process_start: float | None = None
    detail: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """One readmission check. `outcome`: passed, failed or skipped."""

    name: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Validated:
    """The readmission checks of one engine, in order; the last one is the one that failed, if any did.

    `conclusive` is False when a check could not be made, which says nothing of the engine, or a cancelled
    task ended them. `process_start`: of the process that was attested in them, None without an attestation.
    `why`: which check could not be made and what kept it from that, "" if none.
    """

    iid: str
    checks: tuple[Check, ...]
    conclusive: bool = True
    process_start: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class CohortProved:
    """The last checks, `kv_transfer` and what follows, of engines that come back together: each one's own."""

    told: tuple[Validated, ...]


Evidence = (
    LegSucceeded
    | LegFailed
    | CountFailed
    | LegAnswered
    | LegLeft
    | HealthProbed
    | InferenceProbed
    | EdgeProbed
    | LivenessSwept
    | ProcessSeen
    | Identified
    | Validated
    | CohortProved
)
