"""What open decode streams show of their engine between two monitor passes, and what drift made of it."""

from __future__ import annotations

from dataclasses import dataclass

CUT_FINISH = ("abort", "error")
"""Finish reasons of an answer that its engine broke off: HTTP is clean, the text is cut. A tuple, since a
reason may be anything, also without a hash."""


@dataclass(frozen=True, slots=True)
class DecodeSeen:
    """The decode streams of one engine since the pass before.

    `interval_s`: mean seconds between two tokens, a gap that is still open counted as one. `sequences`
    (≥ 1) and `kv_tokens` (> 0): how many streams there were and what they held, on the average.
    """

    iid: str
    interval_s: float
    sequences: float
    kv_tokens: float


@dataclass(frozen=True, slots=True)
class DriftHealth:
    """The drift evidence of one engine. Counts are since the start of this process.

    `scored`, `undersampled`: windows; `last_scored_s_ago`: None before the first and after an ejection.
    `prefill_paused`: scoring waits for the next interval without local prefill work.
    """

    scored: int = 0
    undersampled: int = 0
    last_scored_s_ago: float | None = None
    prefill_paused: bool = False
    prefill_pauses: int = 0


@dataclass(frozen=True, slots=True)
class RoleLoad:
    """Load of the two roles (control.md section 2), 1.0 = at the target; None without profiles.

    Means over the eligible engines of the role, 0.0 where there are none.
    """

    prefill: float | None = None
    decode: float | None = None
