"""When what is read now cannot have come yet.

A process that stood still (stopped, paused, suspended with its host, busy) finds in its sockets what came
meanwhile, and cannot tell when. It can tell what it had read: everything that came before its loop last went
through all sockets. So what is read now came after that, however long and how often the loop stood still
since, and the answer to a call came after the call was sent.

| the loop | this |
| --- | --- |
| the timer fires, at t | goes through the sockets once more, then notes t |
| stands still, anywhere in that | t is older by as much: sooner than true, never later |
| no call is open | no timer |

The time is Clock.now, not the loop's, which does not count a suspended host. What an answer met before it was
in our socket nobody sees here: of that its `date` tells (`engine/dates.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from narwhal.engine.dates import AnswerDates

TICK_S = 0.1
"""So much younger than told is an answer that a running loop reads, at most."""


class Arrivals:
    """For the calls of one client, on its loop. `now` is Clock.now; `dates` compares what engines write."""

    __slots__ = ("_handle", "_loop", "_open", "_read_until", "dates", "now")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], *, dates: AnswerDates | None = None
    ) -> None:
        self._loop = loop
        self.now = now
        self.dates = AnswerDates() if dates is None else dates
        self._open = 0
        self._read_until = -inf
        """What came by then has been read."""
        self._handle: asyncio.Handle | None = None

    def begin(self) -> float:
        """A call is sent: from when on its answer may come. Each begin has its `end`."""
        self._open += 1
        if self._handle is None:
            self._handle = self._loop.call_later(TICK_S, self._tick)
        return self.now()

    def end(self) -> None:
        self._open -= 1
        if not self._open and self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def not_before(self, sent_at: float) -> float:
        """When the first byte, read in this instant, of the answer to what was sent then may have come."""
        return max(sent_at, self._read_until)

    # What a callback asks for runs in the next turn of the loop, on asyncio and uvloop alike. The first may
    # run before the sockets are looked at or what they had is handed on; the second does not.

    def _tick(self) -> None:
        self._handle = self._loop.call_soon(self._look, self.now())

    def _look(self, at: float) -> None:
        self._handle = self._loop.call_soon(self._looked, at)

    def _looked(self, at: float) -> None:
        self._read_until = at
        self._handle = self._loop.call_later(TICK_S, self._tick)
