"""One client request as the router sees it: identity, limits, outcome, its journal row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SHORT_BODY = 4096
"""Bytes. A body up to this length is kept for as long as its request: it costs less than its digest."""
_DIGEST_BYTES = 16


class Outcome(StrEnum):
    """How a request ended: exactly one each (serving.md section 1.9). Values name the counters."""

    SERVED = "served"
    FAILED = "failed"
    REFUSED = "refused"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    INVALID = "invalid_requests"

    __hash__ = str.__hash__
    """Enum's own is a Python function, called at every look-up."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative request counters of one router run, or a sum of runs. All ≥ 0.

    In totals `offered` is the sum of the outcomes; `unserved` counts SLO misses and is no outcome.
    """

    served: int = 0
    failed: int = 0
    unserved: int = 0
    refused: int = 0
    rejected: int = 0
    expired: int = 0
    cancelled: int = 0
    invalid_requests: int = 0
    offered: int = 0

    def fields(self) -> dict[str, int]:
        """Name to count; cheaper than `dataclasses.asdict`, and done every 50 ms."""
        return {name: getattr(self, name) for name in self.__slots__}


class Api(StrEnum):
    """The two generating routes; the value is the path, the same here and at the engine."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"

    __hash__ = str.__hash__


# Not frozen, like all that is made several times a request: a frozen one costs thrice as much to make.
@dataclass(slots=True)
class Deadline:
    """The one deadline that travels with a request; nothing sleeps past it. `at` is on `Clock.now`."""

    at: float

    def remaining_s(self, now: float) -> float:
        return max(0.0, self.at - now)

    def passed(self, now: float) -> bool:
        return now >= self.at

    def within_s(self, limit_s: float, now: float) -> float:
        """Seconds that a step limited to `limit_s` may take from now."""
        return max(0.0, min(limit_s, self.at - now))


@dataclass(slots=True)
class InferenceRequest:
    """A validated data request. Nobody changes a field; only `shed` drops what is not needed any more.

    `fields` is the parsed JSON object exactly as sent; `body` its bytes. `include_usage` and
    `return_token_ids` say what the *client* asked for; what we ask the engine for is ours to add.
    `prompt_ids` is the number of prompt tokens when the prompt came as token IDs.
    """

    api: Api
    rid: str
    client_rid: str | None
    fields: Mapping[str, Any]
    body: bytes
    stream: bool
    include_usage: bool
    return_token_ids: bool
    arrived_at: float
    arrived_wall: float
    traceparent: str | None = None
    max_tokens: int | None = None
    prompt_ids: int | None = None
    _digest: bytes = b""

    def digest(self) -> bytes:
        """Of the body as the client sent it, 16 bytes; equal for equal bodies. Asked for on failure only."""
        return self._digest or _digest_of(self.body)

    def shed(self) -> None:
        """Lets go of the content, once no further attempt can need it: a stream may go on for minutes,
        and thousands of long prompts would lie in memory meanwhile."""
        if len(self.body) > SHORT_BODY:
            self._digest, self.body = _digest_of(self.body), b""
        self.fields = {}


def _digest_of(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


@dataclass(slots=True)
class RequestRow:
    """Journal row of one request (serving.md section 3), filled while it lives. `arrived` is Unix time."""

    rid: str
    client_rid: str | None
    arrived: float
    input_len: int | None = None
    output_len: int = 0
    token_accounting: str = "events"
    ttft_s: float | None = None
    tpot_s: float | None = None
    first_byte_s: float | None = None
    prefill_iid: str | None = None
    decode_iid: str | None = None
    crossed: bool = False
    attempts: int = 0
    attempt_failures: list[dict[str, str]] = field(default_factory=list)
    prefill_rid: str | None = None
    decode_rid: str | None = None
    kv_wait_s: float | None = None
    queue_wait_s: float | None = None
    duration_s: float = 0.0
    terminal: str = ""
    reason: str = ""
    error: str = ""
    epoch: int = 0
