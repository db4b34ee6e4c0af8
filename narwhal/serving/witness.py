"""What legs and token counts showed of their engines, said once each (failures.md sections 2 and 9).

A leg that ended well is said in one call. Never said: our own full pool, a 409 `stale_epoch`, an answer over
our own limit. No failures: the request's own deadline, and a client that left; only that nobody waits any
longer. A timeout is the engine's: what our own loop missed of its time was added to it (`engine/wheel.py`).
"""

from __future__ import annotations

from math import inf

from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTimeout,
    StaleEpoch,
    SuspectedPoison,
)
from narwhal.model.engine import Leg
from narwhal.model.evidence import CountFailed, LegAnswered, LegFailed, LegLeft, LegSucceeded
from narwhal.model.request import InferenceRequest
from narwhal.policy.faults import classify, is_no_connection, may_be_the_requests, way_of
from narwhal.ports import EvidenceSink

_BAD_GATEWAY = 502


class Witness:
    """Says to `sink`."""

    def __init__(self, sink: EvidenceSink) -> None:
        self._sink = sink

    def succeeded(
        self, iid: str, leg: Leg, *, peer: str = "", remote_engine_id: str = "", began: float = inf
    ) -> None:
        """A prefill whose KV handoff was extracted, or a decode that reached its clean end."""
        self._sink.report(LegSucceeded(iid, leg, peer, remote_engine_id, began))

    def failed(
        self,
        error: EngineError,
        leg: Leg,
        *,
        request: InferenceRequest,
        peer: str = "",
        count: CountFailed | None = None,
    ) -> None:
        """`error.iid` did not do its leg. Raises SuspectedPoison if another engine failed in the same way.

        `count`: what the request's token count was said to have met.
        """
        failure = classify(error)
        if failure is None:
            self._answered(error, leg, request=request)
            return
        blamable = may_be_the_requests(error, failure)
        told = LegFailed(
            error.iid,
            leg,
            failure,
            way_of(error, failure),
            str(error),
            peer=peer,
            request=request.digest() if blamable else b"",
            retry_after_s=error.retry_after_s if isinstance(error, EngineRefused) else None,
            again=count is not None and (count.iid, count.failure) == (error.iid, failure),
        )
        if self._sink.report(told) and blamable:
            message = f"suspected poison: {error}"
            raise SuspectedPoison(message, iid=error.iid, leg=leg.value, status=_status(error)) from error

    def left(self, iid: str, leg: Leg, *, sent_at: float, limit_s: float) -> None:
        """Nobody waits any longer for a leg that has given nothing yet, and might have taken `limit_s`."""
        self._sink.report(LegLeft(iid, leg, sent_at, limit_s))

    def not_counted(self, error: EngineError, request: InferenceRequest) -> CountFailed | None:
        """`error.iid` counted no tokens; what is said of it, None: nothing.

        Whatever it answered, or a connection that broke, is of a route that it may lack or that this prompt
        upsets; the leg that follows tells of legs. No connection, and no answer in time, are the engine's.
        """
        if not isinstance(error, EngineTimeout) and not is_no_connection(error):
            return None
        failure = classify(error)
        if failure is None:
            return None
        digest = request.digest() if may_be_the_requests(error, failure) else b""
        told = CountFailed(error.iid, failure, f"token count: {error}", digest)
        self._sink.report(told)
        return told

    def _answered(self, error: EngineError, leg: Leg, *, request: InferenceRequest) -> None:
        # A fence lets every decode pass: one that is refused so was refused by the engine.
        ours = isinstance(error, StaleEpoch) and leg is Leg.PREFILL
        if isinstance(error, EngineRefused) and not ours:
            self._sink.report(LegAnswered(error.iid, leg, error.status, request.digest()))


def _status(error: EngineError) -> int:
    """What the client of a poisoned request is told."""
    if isinstance(error, EngineRefused) and 500 <= error.status <= 599:
        return error.status
    return _BAD_GATEWAY
