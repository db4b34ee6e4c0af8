"""The lease keeper's own thread, loop and connection: a busy main loop cannot make the lease lapse."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable

JOIN_S = 3.0
"""Longest wait for the thread's end: one attempt at the store and what follows it."""


class KeeperThread:
    """Runs one coroutine on a thread. `ended` completes with it, on any thread, also with its error."""

    def __init__(self, run: Callable[[], Awaitable[None]], *, close: Callable[[], Awaitable[None]]) -> None:
        """`close` runs on the same loop after `run`, however that ended."""
        self._work = run
        self._close = close
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name="narwhal-keeper", daemon=True)

    def start(self) -> None:
        # Whoever stops waiting for the end must not take it back: the thread would end in an exception.
        self.ended.set_running_or_notify_cancel()
        self._thread.start()

    def join(self) -> bool:
        """Waits for the end, `JOIN_S` at most; False: it still runs (as a daemon it ends with us)."""
        self._thread.join(JOIN_S)
        return not self._thread.is_alive()

    def _main(self) -> None:
        """What the work raised is not handled here: whoever awaits `ended` on the main loop meets it."""
        error = asyncio.run(self._settled())
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    async def _settled(self) -> BaseException | None:
        (outcome,) = await asyncio.gather(self._both(), return_exceptions=True)
        return outcome

    async def _both(self) -> None:
        try:
            await self._work()
        finally:
            await self._close()
