"""When the next pass is due: a fixed grid of instants, so that slow passes never make it drift."""

from __future__ import annotations

import math


class Cadence:
    """Instants `start + k·interval`. A pass that ran over one or more of them skips those: no bursts."""

    __slots__ = ("_interval_s", "_next", "skipped")

    def __init__(self, *, interval_s: float, start: float) -> None:
        """`interval_s` > 0; `start` is the first instant, on the clock that `delay_s` is asked with."""
        self._interval_s = interval_s
        self._next = start
        self.skipped = 0

    def delay_s(self, now: float) -> float:
        """Seconds from now until the next instant, ≥ 0; moves on to the one after it."""
        late = now - self._next
        if late >= self._interval_s:
            missed = math.floor(late / self._interval_s)
            self._next += missed * self._interval_s
            self.skipped += missed
        delay = max(0.0, self._next - now)
        self._next += self._interval_s
        return delay
