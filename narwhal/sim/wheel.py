"""One timer for every stream: due times are kept in millisecond slots, one loop timer for the next.

A loop timer per token would cost more than the token itself; 2,000 streams share one wake-up per slot.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

TICK_S = 0.001
_TURNING = 0


class Timed:
    """Something that waits on the wheel. `slot` is the wheel's; -1 = not waiting."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = -1

    def fire(self, now: float) -> None:
        """Called once when due, on the loop; `now` is the loop's time."""
        raise NotImplementedError

    def cancel(self) -> None:
        self.slot = -1


class Handle(Protocol):
    def cancel(self) -> None: ...


class TimerLoop(Protocol):
    """The part of an event loop that the wheel turns on."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Handle: ...


class Wheel:
    """Fires each `Timed` at or just after its due time, in slot order. Adding it again moves it."""

    def __init__(self, loop: TimerLoop) -> None:
        self._loop = loop
        self._slots: dict[int, list[Timed]] = {}
        self._order: list[int] = []
        self._timer: Handle | None = None
        self._armed = -1
        self._floor = 0

    def now(self) -> float:
        return self._loop.time()

    def add(self, timed: Timed, due: float) -> None:
        """Let `timed` fire at `due` (loop time); a due time in the past fires at the next turn."""
        slot = max(int(due / TICK_S) + 1, self._floor)
        timed.slot = slot
        bucket = self._slots.get(slot)
        if bucket is not None:
            bucket.append(timed)
            return
        self._slots[slot] = [timed]
        heapq.heappush(self._order, slot)
        if self._armed < 0 or slot < self._armed:
            self._arm(slot)

    def close(self) -> None:
        """Drop everything that waits."""
        self._slots.clear()
        self._order.clear()
        self._disarm()

    def _arm(self, slot: int) -> None:
        self._disarm()
        self._armed = slot
        self._timer = self._loop.call_at(slot * TICK_S, self._turn)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._armed = -1

    def _turn(self) -> None:
        self._timer, self._armed = None, _TURNING
        now = self._loop.time()
        # The slot that armed the timer is due even when the loop woke a hair early.
        current = max(int(now / TICK_S), self._order[0] if self._order else 0)
        self._floor = current + 1
        try:
            while self._order and self._order[0] <= current:
                self._fire(heapq.heappop(self._order), now)
        finally:
            self._armed = -1
            if self._order:
                self._arm(self._order[0])

    def _fire(self, slot: int, now: float) -> None:
        for timed in self._slots.pop(slot):
            if timed.slot == slot:
                timed.slot = -1
                timed.fire(now)
