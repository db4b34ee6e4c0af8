"""Engines as the fleet file names them, and the words for what an engine is offered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Which leg an engine is offered first."""

    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> Role:
        return Role.DECODE if self is Role.PREFILL else Role.PREFILL


class Leg(StrEnum):
    """What a call to an engine is for; the value of the `x-narwhal-leg` header."""

    PREFILL = "prefill"
    DECODE = "decode"
    PROBE = "probe"

    __hash__ = str.__hash__
    """Enum's own is a Python function, called at every look-up."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One row of the fleet file's `engines`. `url` has no trailing slash and no `${NAME}` left."""

    iid: str
    url: str
    role: Role = Role.DECODE
    pin: bool = False
    attestation_url: str = ""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One row of the profile store (narwhal.profiles v1): measured cost of one engine.

    prefill seconds = ttft_a·n² + ttft_b·n + ttft_c for n prompt tokens; decode interval in seconds =
    tpot_slope·(resident KV tokens) + tpot_request_slope·(active sequences) + tpot_intercept.
    """

    iid: str
    ttft_a: float
    ttft_b: float
    ttft_c: float
    tpot_slope: float
    tpot_intercept: float
    tpot_request_slope: float = 0.0
    kv_capacity_tokens: int | None = None
    generation_digest: str | None = None
    decode_min_requests: int = 0
    decode_max_requests: int = 0
    decode_min_kv_tokens: int = 0
    decode_max_kv_tokens: int = 0
    decode_fit_mape: float = 0.0
    decode_cv_mape: float = 0.0
