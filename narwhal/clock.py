"""Time as a port: machines are handed `now`, shells read it here once per event or pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

HAS_BOOTTIME = hasattr(time, "CLOCK_BOOTTIME")
"""False on macOS: CLOCK_MONOTONIC stands in, and the process says so at start."""

_LOCAL_CLOCK = time.CLOCK_BOOTTIME if HAS_BOOTTIME else time.CLOCK_MONOTONIC


class Clock(Protocol):
    """Local clock of one router process.

    `now` is monotonic seconds that also count while the host sleeps; only its rate matters and it is
    never compared with another machine's. `wall` is Unix seconds, for people and documents only.
    """

    def now(self) -> float: ...

    def wall(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """CLOCK_BOOTTIME, the wall clock and the running loop's timer."""

    __slots__ = ("now", "wall")

    def __init__(self) -> None:
        # Called a dozen times a request: no Python frame around the system's own functions.
        self.now: Callable[[], float] = partial(time.clock_gettime, _LOCAL_CLOCK)
        self.wall: Callable[[], float] = time.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
