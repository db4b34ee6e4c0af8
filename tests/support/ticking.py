"""A Clock that a test moves by hand."""

from __future__ import annotations


class TickingClock:
    """`ports` of time without time: `now_s` and `wall_s` are what the test sets."""

    def __init__(self, now_s: float = 1000.0, wall_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s
        self.wall_s = wall_s

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.wall_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += max(0.0, seconds)
        self.wall_s += max(0.0, seconds)
