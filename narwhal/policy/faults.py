"""The one table from what went wrong on a leg to its failure class (failures.md section 2). Pure.

| what was seen | class |
| --- | --- |
| connect refused, reset, DNS or TLS failure, connection lost before a response | connection |
| connect or read timeout, prefill deadline | timeout |
| no first token in time, silence, end without [DONE], malformed event, bad finish reason | stream |
| status 408, 429 | overload |
| any other 5xx, an error object inside a 200 | inference_status |
| prefill answered 200 without a usable KV handoff | kv_handoff |
| our own pool, any other status (an answer), an answer over our own limit, what was judged before | none |
"""

from __future__ import annotations

from collections.abc import Mapping

from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    HandoffInvalid,
    StreamBroken,
)
from narwhal.model.evidence import FailureClass

_TIMEOUTS: Mapping[str, FailureClass] = {
    "connect": FailureClass.TIMEOUT,
    "read": FailureClass.TIMEOUT,
    "prefill": FailureClass.TIMEOUT,
    "first_token": FailureClass.STREAM,
    "silence": FailureClass.STREAM,
}
_BROKEN: Mapping[str, FailureClass | None] = {
    "malformed": FailureClass.STREAM,
    "early_end": FailureClass.STREAM,
    "bad_finish": FailureClass.STREAM,
    "error_object": FailureClass.INFERENCE_STATUS,
    "too_large": None,
}
BACK_PRESSURE = frozenset((408, 429))
"""Statuses with which an engine asks for relief."""
NO_ANSWER = frozenset({FailureClass.CONNECTION, FailureClass.TIMEOUT})
"""Classes of legs to which the engine said nothing."""


def way_of(error: EngineError, failure: FailureClass) -> str:
    """How the leg failed, for comparison across engines: class and status, or class and kind."""
    match error:
        case EngineRefused():
            return f"{failure}:{error.status}"
        case EngineUnreachable() | EngineTimeout() | StreamBroken():
            return f"{failure}:{error.kind}"
        case _:
            return f"{failure}"


def may_be_the_requests(error: EngineError, failure: FailureClass) -> bool:
    """False: the request cannot be at fault, since the engine never got it or only had no room for it."""
    if failure is FailureClass.OVERLOAD:
        return False
    return not is_no_connection(error)


def is_no_connection(error: EngineError) -> bool:
    """The engine took none, refused or in time: it never got what it was asked."""
    return isinstance(error, EngineUnreachable | EngineTimeout) and error.kind == "connect"


def classify(error: EngineError) -> FailureClass | None:
    """The class that `error` counts in, None when it is no failure of the engine."""
    match error:
        case EngineUnreachable():
            return FailureClass.CONNECTION
        case EngineTimeout():
            return _TIMEOUTS[error.kind]
        case StreamBroken():
            return _BROKEN[error.kind]
        case HandoffInvalid():
            return FailureClass.KV_HANDOFF
        case EngineRefused():
            return _of_status(error.status)
        case _:
            return None


def _of_status(status: int) -> FailureClass | None:
    if status in BACK_PRESSURE:
        return FailureClass.OVERLOAD
    return FailureClass.INFERENCE_STATUS if status >= 500 else None
