"""What a request asks of placement and what it gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """Size of one request: prompt tokens (counted or estimated), most it may generate (0 = unknown)."""

    input_tokens: int
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """One engine chosen for one leg. `violates_slo`: every candidate did, this one least."""

    iid: str
    cost_s: float
    violates_slo: bool = False
