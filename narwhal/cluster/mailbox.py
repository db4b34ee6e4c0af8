"""Commands for a loop on another thread: each runs there, in the order of posting, and ends its sleep."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from narwhal.clock import Clock
from narwhal.cluster.trouble import Bugs

LONGEST_REST_S = 60.0

Command = Callable[[], None]


class Mailbox:
    """`post` is anybody's, everything else the loop's. `after` runs after each command that was posted."""

    def __init__(self, clock: Clock, *, after: Command) -> None:
        self._clock = clock
        self._after = after
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early: list[Command] = []
        self._posting = threading.Lock()
        self._sleeper: asyncio.Future[None] | None = None
        self.bugs = Bugs()
        """What commands raised: the loop would only log it."""

    def post(self, command: Command) -> None:
        with self._posting, contextlib.suppress(RuntimeError):  # closed: the loop has ended
            if self._loop is None:
                self._early.append(command)
            else:
                self._loop.call_soon_threadsafe(self._obey, command)

    def _obey(self, command: Command) -> None:
        with self.bugs:
            command()
            self._after()
        if self._sleeper is not None:
            self._sleeper.cancel()

    def open(self) -> None:
        """On the loop that is to obey: what was posted before runs now, and raises here."""
        with self._posting:
            self._loop = asyncio.get_running_loop()
        for command in self._early:
            command()

    async def pause(self, seconds: float) -> None:
        """Sleeps on the router's clock; a command ends it early."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._sleeper = asyncio.ensure_future(self._clock.sleep(min(seconds, LONGEST_REST_S)))
        try:
            await asyncio.wait({self._sleeper})
        finally:
            self._sleeper.cancel()
            self._sleeper = None
