"""The one map from exception to response (http-api.md section 1, error envelope and codes).

| exception | status | type / code |
| --- | --- | --- |
| BadRequest | 400 | invalid_request_error / null |
| UnknownModel | 404 | invalid_request_error / model_not_found |
| TooLarge | 413 | request_too_large / null |
| RequestIncomplete | 408 | invalid_request_error / request_timeout, connection closed |
| Overloaded, Refused | 429 | server_overloaded_error / null, Retry-After if it is worth a retry |
| NotOwner | 503 | standby / standby, Retry-After |
| NoEngine | 503 | backend_unavailable / same, Retry-After |
| NoSchedulableEngine | 503 | no_schedulable_engines / same, Retry-After |
| QueueExpired, RequestExpired | 504 | queue_expired, request_expired / null |
| HandoffExpired | 504 | handoff_expired / same |
| EngineRefused 400, 413, 422 | the engine's | the engine's error object, without addresses |
| EngineRefused 429 | 429 | server_overloaded_error / null, the engine's Retry-After or 1 |
| SuspectedPoison | the engine's or 502 | prefill or decode / same |
| EngineRefused 408, any EngineError that timed out | 504 | prefill or decode / same |
| any other EngineError | 502 | prefill or decode / same |
| anything else | 500 | internal_error / null, with the request ID |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from narwhal.api.envelope import error_object
from narwhal.errors import (
    BadRequest,
    CapacityError,
    DeadlineError,
    EngineError,
    EngineRefused,
    HandoffExpired,
    NoEngine,
    NoSchedulableEngine,
    NotOwner,
    QueueExpired,
    RequestError,
    RequestExpired,
    RequestIncomplete,
    SuspectedPoison,
    TooLarge,
    UnknownModel,
)

INVALID = "invalid_request_error"
OVERLOADED = "server_overloaded_error"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """One error as the client is told it: a response, or the last event of a stream that has started."""

    status: int
    error: Mapping[str, Any]
    retry_after_s: float | None = None
    close: bool = False
    """The connection must not be used again: part of the request is still on it."""

    def body(self) -> bytes:
        """JSON. What only an engine's error object can hold (lone surrogates, huge integers) is escaped."""
        try:
            return orjson.dumps({"error": self.error})
        except TypeError:
            return json.dumps({"error": self.error}).encode()

    def event(self) -> bytes:
        """The server-sent event that ends a stream in place of `[DONE]`."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self, rid: str) -> list[tuple[str, str]]:
        headers = [("content-type", "application/json"), ("x-request-id", rid)]
        if self.retry_after_s is not None:
            headers.append(("retry-after", str(max(1, math.ceil(self.retry_after_s)))))
        if self.close:
            headers.append(("connection", "close"))
        return headers


def answer(error: Exception, rid: str) -> ErrorAnswer:
    """What the client is told of `error`; `rid` is the request ID that it already knows or will get.

    Never shows exception text of engines, the store or bugs: that belongs in the journal.
    """
    match error:
        case RequestError():
            return _of_request(error)
        case CapacityError():
            return _of_capacity(error)
        case DeadlineError():
            return _of_deadline(error)
        case EngineRefused():
            return _of_refusal(error)
        case SuspectedPoison():
            return _of_leg(error, error.status)
        case EngineError():
            return _of_leg(error, 504 if error.timed_out else 502)
        case _:
            return ErrorAnswer(500, error_object(f"internal error; request {rid}", "internal_error"))


_REQUEST: tuple[tuple[type[RequestError], int, str, str | None], ...] = (
    (UnknownModel, 404, INVALID, "model_not_found"),
    (TooLarge, 413, "request_too_large", None),
    (RequestIncomplete, 408, INVALID, "request_timeout"),
    (BadRequest, 400, INVALID, None),
)
_CAPACITY: tuple[tuple[type[CapacityError], int, str, str | None], ...] = (
    (NotOwner, 503, "standby", "standby"),
    (NoEngine, 503, "backend_unavailable", "backend_unavailable"),
    (NoSchedulableEngine, 503, "no_schedulable_engines", "no_schedulable_engines"),
    (CapacityError, 429, OVERLOADED, None),
)
_DEADLINE: tuple[tuple[type[DeadlineError], str, str | None], ...] = (
    (QueueExpired, "queue_expired", None),
    (RequestExpired, "request_expired", None),
    (HandoffExpired, "handoff_expired", "handoff_expired"),
)


def _of_request(error: RequestError) -> ErrorAnswer:
    status, kind, code = next(
        (row[1:] for row in _REQUEST if isinstance(error, row[0])), (400, INVALID, None)
    )
    close = isinstance(error, TooLarge | RequestIncomplete)
    return ErrorAnswer(status, error_object(str(error), kind, param=error.param, code=code), close=close)


def _of_capacity(error: CapacityError) -> ErrorAnswer:
    status, kind, code = next(row[1:] for row in _CAPACITY if isinstance(error, row[0]))
    return ErrorAnswer(status, error_object(str(error), kind, code=code), error.retry_after_s)


def _of_deadline(error: DeadlineError) -> ErrorAnswer:
    kind, code = next((row[1:] for row in _DEADLINE if isinstance(error, row[0])), ("request_expired", None))
    return ErrorAnswer(504, error_object(str(error), kind, code=code))


def _of_refusal(error: EngineRefused) -> ErrorAnswer:
    if error.about_the_request:
        return ErrorAnswer(error.status, _passed_on(error.error))
    if error.status == 429:
        wait_s = 1.0 if error.retry_after_s is None else error.retry_after_s
        return ErrorAnswer(429, error_object("the engines are overloaded", OVERLOADED), wait_s)
    return _of_leg(error, 504 if error.status == 408 else 502)


def _of_leg(error: EngineError, status: int) -> ErrorAnswer:
    leg = error.leg or "decode"
    what = "did not answer in time" if status == 504 else "failed"
    return ErrorAnswer(status, error_object(f"the {leg} leg {what}", leg, code=leg))


# --- addresses -----------------------------------------------------------------------------------

_ADDRESS = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>)]+"  # URL
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"  # IPv4, with or without a port
    r"|\[[0-9a-fA-F]*:[0-9a-fA-F:.]*\](?::\d+)?"  # IPv6 literal
    r"|(?<![\w.-])[A-Za-z0-9_][\w.-]*:\d{2,5}(?![\d.])"  # host:port
)


_LONGEST_TEXT = 4096
"""Characters of an engine's message that are passed on."""


def without_addresses(text: str) -> str:
    """`text` with URLs, IP addresses and host:port pairs replaced."""
    return _ADDRESS.sub("(address)", text)


def _passed_on(error: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's error object: every key it has, the four keys in any case, no address anywhere."""
    blank = error_object("the engine refused the request", INVALID)
    return {**blank, **{key: _scrubbed(value) for key, value in error.items()}}


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return without_addresses(value[:_LONGEST_TEXT])
    if isinstance(value, Mapping):
        return {key: _scrubbed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_scrubbed(item) for item in value]
    return value
