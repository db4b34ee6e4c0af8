"""Coarse deadlines for many exchanges at the price of one timer.

Each watched thing lies in one bucket, a tick wide. When its bucket comes up it is asked once; it looks at
its own times and answers when to be asked again. So a read costs no timer, and a pass never
visits things that are not due. Precision is one tick, late, never early. The timer is set to the first
bucket there is: ticks without one wake nobody.

When the loop itself stood still, what came meanwhile lies unread in the sockets, and timers run before they
are read: a turn that is late looks at nothing and comes again a tick later, after the sockets. What the loop
missed of a time limit is added to it (`prolonged`): an engine has its whole time, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

TICK_S = 0.05
LATE_S = 0.1
"""A timer that fires later than this was held up by our own loop."""


StoodStill = Callable[[float], float]
"""Seconds that our own loop did not run, of the last so many."""


def never(within_s: float) -> float:
    """Of a loop that always ran."""
    return 0.0


def prolonged(due: float, limit_s: float, *, now: float, stood_still_s: StoodStill) -> float:
    """When a limit of so many seconds is up that a running loop would have seen up at `due`; it is asked
    only once that has come."""
    return due if now < due else due + stood_still_s(now - due + limit_s)


class Watched(Protocol):
    """`bucket` belongs to the wheel: None while not watched."""

    bucket: int | None

    def look(self, now: float, stood_still_s: StoodStill) -> float | None:
        """Called when due (`now` on the loop's clock): the next time to look, None for never again."""


class Wheel:
    """All deadlines of one event loop. The timer runs only while something is watched. `stood_still_s` is for
    whoever is asked."""

    __slots__ = ("_armed", "_buckets", "_loop", "_put_off", "_tick", "_tick_s", "_timer", "stood_still_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float = TICK_S) -> None:
        self._loop = loop
        self.stood_still_s: StoodStill = never
        self._tick_s = tick_s
        self._tick = 0
        self._buckets: dict[int, set[Watched]] = {}
        self._armed = 0
        """The tick that the timer, where there is one, is set to."""
        self._timer: asyncio.TimerHandle | None = None
        self._put_off = False
        """The turn that comes is one that was late."""

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def watch(self, what: Watched, due: float) -> None:
        """Asks `what` at `due` (loop time) or up to one tick later; replaces an earlier watch."""
        if what.bucket is not None:
            self.drop(what)
        tick = what.bucket = max(self._tick, int(due / self._tick_s)) + 1
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.add(what)
            return
        self._buckets[tick] = {what}
        if self._timer is None or tick < self._armed:
            self._need(tick)

    def drop(self, what: Watched) -> None:
        """Watches no longer; nothing happens when it was not watched."""
        if what.bucket is None:
            return
        bucket = self._buckets.get(what.bucket)
        if bucket is not None:
            bucket.discard(what)
            if not bucket:
                del self._buckets[what.bucket]
        what.bucket = None

    def close(self) -> None:
        """Forgets everything and stops the timer."""
        for bucket in self._buckets.values():
            for what in bucket:
                what.bucket = None
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _need(self, tick: int) -> None:
        """The next turn at `tick`, which is before any that was set."""
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        self._timer = self._loop.call_at(tick * self._tick_s, self._turn)

    def _turn(self) -> None:
        now = self._loop.time()
        if not self._put_off and now - self._armed * self._tick_s > LATE_S:
            self._put_off = True
            self._timer = self._loop.call_later(self._tick_s, self._turn)
            return
        self._put_off = False
        last = self._tick = max(self._armed, int(now / self._tick_s))
        self._timer = None
        for tick in sorted(tick for tick in self._buckets if tick <= last):
            self._ask(self._buckets.pop(tick, set()), now)
        if self._buckets:
            self._need(min(self._buckets))

    def _ask(self, bucket: set[Watched], now: float) -> None:
        for what in bucket:
            what.bucket = None
        for what in bucket:
            due = what.look(now, self.stood_still_s)
            if due is not None:
                self.watch(what, due)
