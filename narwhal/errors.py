"""The exception tree. `api/errors.py` maps it to responses; nothing else does.

    NarwhalError
      RequestError          -> 4xx       BadRequest, UnknownModel, TooLarge, RequestIncomplete
      CapacityError         -> 429/503   Overloaded, NoSeat, Refused, NoEngine,
                                         NoSchedulableEngine, NotOwner
      DeadlineError         -> 504       RequestExpired, QueueExpired, HandoffExpired
      EngineError           -> 502/504   EngineUnreachable, EngineTimeout, EngineRefused, StaleEpoch,
                                         StreamBroken, HandoffInvalid, SuspectedPoison, PoolExhausted,
                                         EngineTaken, ProbeLate, PullFailed
      IdentityError         -> 503/409   AttestationInvalid
      StoreError                         StoreUnreachable, StoreProtocolError, StoreDamaged, Fenced
      ConfigError           -> exit 2
      SavedStateError       -> exit 3
      InvariantViolation    a bug: crash the process

Messages of RequestError, CapacityError and DeadlineError are written for the client. Messages of
EngineError and StoreError hold addresses and driver text: they go to the journal, never to a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class NarwhalError(Exception):
    """Root of everything Narwhal raises on purpose."""


class RequestError(NarwhalError):
    """The client's request cannot be served as sent. `param` names the field at fault, if one is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BadRequest(RequestError):
    """Malformed body, wrong type, refused option."""


class UnknownModel(RequestError):
    """The named model is not the served one."""


class TooLarge(RequestError):
    """The body is over `serving.max_request_bytes`."""


class RequestIncomplete(RequestError):
    """The body stopped arriving; the connection is closed after the answer."""


class CapacityError(NarwhalError):
    """This router cannot take the request now. `retry_after_s`: seconds, None = do not retry."""

    def __init__(self, message: str, *, retry_after_s: float | None = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(CapacityError):
    """In-flight limit reached and no queue room, or the engine's last answer was 429."""


class NoSeat(Overloaded):
    """Every engine that the leg may go to has as many of its kind as it may have at a time: wait for one."""


class Refused(CapacityError):
    """Predictive admission: the TTFT budget cannot be met."""


class NoEngine(CapacityError):
    """No eligible engine while the router is in control."""


class NoSchedulableEngine(CapacityError):
    """No engine may take a leg, whatever its health (pins)."""


class NotOwner(CapacityError):
    """Standby, fenced, held, degraded or shutting down."""


class DeadlineError(NarwhalError):
    """Time ran out at a place that is no engine's fault."""


class RequestExpired(DeadlineError):
    """The request's own deadline passed before the response began."""


class QueueExpired(DeadlineError):
    """The wait in the admission queue was too long."""


class HandoffExpired(DeadlineError):
    """The KV handoff grew too old before its decode could be dispatched."""


class EngineError(NarwhalError):
    """One leg on one engine failed. `iid` names the engine, `timed_out` picks 504 over 502.

    `leg` is set where the leg is known: "prefill" or "decode".
    """

    timed_out = False
    leg = ""

    def __init__(self, message: str, *, iid: str = "") -> None:
        super().__init__(message)
        self.iid = iid


class EngineUnreachable(EngineError):
    """Connect refused, reset, DNS or TLS failure, or connection lost before a response.

    `kind`: connect (the engine never got the request) or lost.
    """

    def __init__(self, message: str, *, iid: str = "", kind: str = "lost") -> None:
        super().__init__(message, iid=iid)
        self.kind = kind


class EngineTimeout(EngineError):
    """Connect or read timeout, prefill deadline, first-token deadline, silence mid-stream.

    `kind` is one of connect, read, prefill, first_token, silence; `limit_s` the seconds that were given, in
    which our own loop ran.
    """

    timed_out = True

    def __init__(self, message: str, *, iid: str = "", kind: str = "read", limit_s: float = 0.0) -> None:
        super().__init__(message, iid=iid)
        self.kind = kind
        self.limit_s = limit_s


class EngineRefused(EngineError):
    """The engine answered with an error status.

    `error` is the engine's error object (may be empty), `retry_after_s` its Retry-After, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        iid: str = "",
        status: int,
        error: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, iid=iid)
        self.status = status
        self.error: Mapping[str, Any] = error or {}
        self.retry_after_s = retry_after_s

    @property
    def about_the_request(self) -> bool:
        """The status tells of the client's request (prompt too long, bad parameter), not of the engine."""
        return self.status in (400, 413, 422)


class StaleEpoch(EngineRefused):
    """The engine's epoch fence answered 409 `stale_epoch`: it knows the higher `epoch` of our cluster.

    Whether that is above ours, and so the end of our ownership, is the control gate's to judge.
    """

    def __init__(self, message: str, *, iid: str = "", epoch: int, error: Mapping[str, Any]) -> None:
        super().__init__(message, iid=iid, status=409, error=error)
        self.epoch = epoch

    def disbelieved(self) -> EngineRefused:
        """The same answer where its claim cannot be true: a refusal of the engine's own."""
        return EngineRefused(f"claims epoch {self.epoch}", iid=self.iid, status=self.status, error=self.error)


class StreamBroken(EngineError):
    """A stream or body ended without its clean end, or carried an error object or bad finish reason.

    `kind` is one of malformed, early_end, error_object, bad_finish, too_large.
    """

    def __init__(self, message: str, *, iid: str = "", kind: str = "malformed") -> None:
        super().__init__(message, iid=iid)
        self.kind = kind


class HandoffInvalid(EngineError):
    """Prefill answered 200, but its KV descriptor is missing or malformed."""


class PullFailed(EngineError):
    """In a probe: its KV handoff could not be pulled by a consumer that does well alone."""


class SuspectedPoison(EngineError):
    """The request failed in the same way on two engines: it is not tried again.

    `status` is what the engine answered, 502 where it gave no status.
    """

    def __init__(self, message: str, *, iid: str = "", leg: str = "", status: int = 502) -> None:
        super().__init__(message, iid=iid)
        self.leg = leg
        self.status = status


class PoolExhausted(EngineError):
    """No seat in our own connection pool within `engine.pool_timeout_s`: ours, never the engine's fault."""

    timed_out = True


class EngineTaken(EngineError):
    """The whole fleet or this engine was taken out of placement: no leg is sent. Never the engine's fault."""


class ProbeLate(EngineError):
    """The KV handoff of a probe grew too old before its decode: it is not sent. Never the engine's fault."""


class IdentityError(NarwhalError):
    """Which process an engine is cannot be told from its answers. The message is one sentence."""


class AttestationInvalid(IdentityError):
    """What the sidecar served is no attestation. The message is one sentence, without addresses."""


class StoreError(NarwhalError):
    """The shared store did not do what was asked."""


class StoreUnreachable(StoreError):
    """No answer: refused, timed out, closed, loading, read-only. The operation may still happen later.

    `kind`: the server's error word (READONLY, OOM, LOADING...), "" where nothing was answered at all.
    """

    def __init__(self, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class StoreProtocolError(StoreError):
    """An answer that this version cannot read, or a server that cannot be used (start is refused)."""


class StoreDamaged(StoreProtocolError):
    """What is stored under a key was written by no router. It is no answer, like silence, and no reason to
    end: a router goes on, says once which key, and takes it up again when it is mended or deleted."""


class Fenced(StoreError):
    """This token or epoch is superseded. Final for the token."""


class ConfigError(NarwhalError):
    """Wrong usage or configuration: exit status 2. `problems`: one sentence each, never empty."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class SavedStateError(NarwhalError):
    """Saved state that this version must not load: exit status 3. The message names file and field.

    `fields`: the JSON object with a field of a wrong type in it, None where nothing could be read.
    """

    def __init__(self, message: str, *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.fields = fields


class InvariantViolation(NarwhalError):
    """A bug in Narwhal. Crash: a router in an unknown state must not serve."""
