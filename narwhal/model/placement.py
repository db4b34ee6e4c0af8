"""What a request asks of placement and what it gets."""

from __future__ import annotations

from dataclasses import dataclass

from narwhal.model.engine import Leg
from narwhal.model.evidence import CountFailed


# Not frozen, like all that is made several times a request: a frozen one costs thrice as much to make.
@dataclass(slots=True)
class Demand:
    """Size of one request: prompt tokens (counted or estimated), most it may generate (0 = unknown).

    `count`: what was said of the engine that was to count them, None: nothing.
    """

    input_tokens: int
    output_tokens: int = 0
    count: CountFailed | None = None

    @property
    def kv_tokens(self) -> int:
        """KV tokens to expect on the decode engine: the prompt and half of the limit, the mean over a
        sequence that runs to its limit. An unknown limit adds nothing."""
        return self.input_tokens + self.output_tokens // 2


@dataclass(slots=True)
class Reservation:
    """One leg placed on one engine, resident there until `Fleet.release`.

    `work` is what it adds to that engine: predicted seconds (prefill) or KV tokens (decode); without
    profiles prompt tokens and KV tokens. `cost` is what placement compared. `violates_slo`: every
    candidate would miss the target, this one was the cheapest.
    """

    ticket: int
    iid: str
    leg: Leg
    work: float
    cost: float
    violates_slo: bool


@dataclass(frozen=True, slots=True)
class Resident:
    """Legs now placed on one engine by this router."""

    prefill: int = 0
    decode: int = 0
