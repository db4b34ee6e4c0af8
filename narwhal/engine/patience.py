"""A time limit that does not count against others what our own loop missed."""

from __future__ import annotations

import asyncio
from math import inf
from types import TracebackType

from narwhal.engine.wheel import LATE_S, TICK_S, StoodStill, never, prolonged


class patience:
    """`async with patience(seconds)`: as `asyncio.timeout`, raising TimeoutError at the end of the block.

    When the loop stood still at the end of the time, what happened meanwhile has not been taken in yet: it
    is first, and the block goes on if that was what it waited for. It ends later by what the loop missed,
    `spare_s` at most.
    """

    __slots__ = ("_due", "_last", "_loop", "_put_off", "_scope", "_seconds", "_stood_still_s", "_timer")

    def __init__(self, seconds: float, *, stood_still_s: StoodStill = never, spare_s: float = inf) -> None:
        self._loop = asyncio.get_running_loop()
        self._scope = asyncio.timeout(None)
        self._seconds = seconds
        self._stood_still_s = stood_still_s
        self._due = self._loop.time() + seconds
        self._last = self._due + spare_s
        self._put_off = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._timer = self._loop.call_at(self._due, self._end)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def _end(self) -> None:
        now = self._loop.time()
        late = not self._put_off and now - self._due > LATE_S
        due = prolonged(self._due, self._seconds, now=now, stood_still_s=self._stood_still_s)
        if late or now < min(due, self._last):
            self._put_off = True
            self._timer = self._loop.call_later(TICK_S, self._end)
        else:
            self._scope.reschedule(now)
