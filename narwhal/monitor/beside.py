"""Work beside the pass: one task a key, a few begun in each turn of the loop (failures.md section 1)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

AT_ONCE = 8
"""Tasks that begin in one turn of the loop: a fleet of hundreds must not hold it up."""


class Beside(Generic[Key]):
    """Main loop only. Nothing here waits but `aclose`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Key, Callable[[], Awaitable[None]]]] = deque()
        self._open: dict[Key, asyncio.Task[None] | None] = {}
        """None: it waits for its turn to begin."""
        self._starting: asyncio.Task[None] | None = None
        self._left: set[asyncio.Task[None]] = set()
        """Cancelled, and not ended yet."""
        self._bug: BaseException | None = None
        self._more = 0
        """Bugs since `_bug`: one mistake may show on every engine, and one telling ends it."""

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def __len__(self) -> int:
        """Keys whose work is under way."""
        return len(self._open)

    def begin(self, key: Key, work: Callable[[], Awaitable[None]]) -> bool:
        """Runs `work` soon. False: work of that key is under way, this one is not begun."""
        if key in self._open:
            return False
        self._open[key] = None
        self._waiting.append((key, work))
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(), name="beside-the-pass")
        return True

    def over(self, key: Key) -> None:
        """Said by work of that key before it ends: more of it may begin."""
        if self._open.get(key) is asyncio.current_task():
            del self._open[key]

    def take_in(self) -> None:
        """Raises what work ended with since the last call, the first of it: what an engine did is none."""
        bug, more = self._bug, self._more
        self._bug, self._more = None, 0
        if bug is None:
            return
        if more:
            bug.add_note(f"and {more} more since the last pass")
        raise bug

    def abandon(self, keys: Iterable[Key] | None = None) -> None:
        """Cancels the work of these keys (None: all of it) and forgets it at once."""
        gone = set(self._open if keys is None else keys)
        self._waiting = deque(entry for entry in self._waiting if entry[0] not in gone)
        for key in gone:
            task = self._open.pop(key, None)
            if task is not None:
                self._left.add(task)
                task.cancel()

    async def aclose(self) -> None:
        self.abandon()
        tasks = [*self._left, *([self._starting] if self._starting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self) -> None:
        while self._waiting:
            for _ in range(min(AT_ONCE, len(self._waiting))):
                key, work = self._waiting.popleft()
                task = asyncio.ensure_future(self._run(key, work))
                self._open[key] = task
                task.add_done_callback(self._ended)
            await asyncio.sleep(0)

    async def _run(self, key: Key, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self.over(key)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._left.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._more += self._bug is not None
            self._bug = self._bug or error
