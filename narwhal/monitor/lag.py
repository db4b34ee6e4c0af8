"""Event-loop lag: how much later than asked a timer of the main loop fires."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

TICK_S = 0.1
IDLE_TICK_S = 0.5
"""Where nobody is served a tick is a wake-up of its own, which costs more than all that it measures."""

STILL_S = 0.1
"""A tick later than this tells of a loop that stood still."""
_KEPT = 64


class LoopLag:
    """Ticks on the running loop, ten a second while `busy`; `take` gives the worst since the last call.

    How long the loop stood still is told to a tick: one that was due in the standstill came late by what
    was left of it.
    """

    __slots__ = ("_busy", "_due", "_handle", "_loop", "_stills", "_worst_s")

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._worst_s = 0.0
        self._stills: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """Begin and end of each standstill, loop time."""

    def start(self) -> None:
        """Begins to tick on the running loop; ticking already: nothing happens."""
        if self._handle is None:
            self._loop = asyncio.get_running_loop()
            self._schedule(self._loop)

    def take(self) -> float:
        """Seconds ≥ 0. Counts a tick that is overdue at this instant too."""
        overdue_s = self._loop.time() - self._due if self._loop is not None else 0.0
        worst_s, self._worst_s = max(self._worst_s, overdue_s, 0.0), 0.0
        return worst_s

    def stood_still_s(self, within_s: float) -> float:
        """Seconds of the last `within_s` in which the loop did not run, as far as ticks tell."""
        if self._loop is None:
            return 0.0
        now = self._loop.time()
        since = now - within_s
        stills = [*self._stills, (self._due, now)] if now - self._due > STILL_S else self._stills
        return sum(max(0.0, end - max(begin, since)) for begin, end in stills)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + (TICK_S if self._busy() else IDLE_TICK_S)
        self._handle = loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._worst_s = max(self._worst_s, now - self._due)
        if now - self._due > STILL_S:
            self._stills.append((self._due, now))
        self._schedule(loop)
