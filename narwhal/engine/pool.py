"""Seats and idle connections of the data pool.

One number of seats over all engines: an exchange holds one from before its connect to its end. Idle
connections lie per engine, newest on top (the longer one has been idle, the likelier the engine is about
to close it), and are let go after `IDLE_S`: vLLM closes at 5 s.
"""

from __future__ import annotations

import asyncio
from collections import deque

from narwhal.engine.connection import Connection
from narwhal.engine.patience import patience
from narwhal.errors import PoolExhausted

IDLE_S = 4.0
_SWEEP_S = 0.25


class Seats:
    """A counting semaphore, first come first served, whose wait is bounded."""

    __slots__ = ("_free", "_loop", "_waiting", "size")

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.size = size
        self._free = size
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        return self.size - self._free

    @property
    def waiting(self) -> int:
        """Callers without a seat."""
        return len(self._waiting)

    def take_free(self) -> bool:
        """A seat without waiting, if there is one. Give each seat back exactly once."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return True
        return False

    async def wait(self, timeout_s: float) -> None:
        """A seat when one is given back. Raises PoolExhausted after `timeout_s`."""
        seat = self._loop.create_future()
        self._waiting.append(seat)
        try:
            async with patience(timeout_s):
                await seat
        except (TimeoutError, asyncio.CancelledError) as error:
            self._forget(seat)
            if isinstance(error, TimeoutError):
                raise PoolExhausted(f"no free connection in {timeout_s} s ({self.size} seats)") from None
            raise

    def give(self) -> None:
        while self._waiting:
            seat = self._waiting.popleft()
            if not seat.done():
                seat.set_result(None)
                return
        self._free += 1

    def _forget(self, seat: asyncio.Future[None]) -> None:
        if seat.done() and not seat.cancelled():
            self.give()
        elif seat in self._waiting:
            self._waiting.remove(seat)


class IdleConnections:
    """Connections that wait for their next exchange."""

    __slots__ = ("_by_engine", "_loop", "_size", "_sweep")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_engine: dict[str, deque[tuple[float, Connection]]] = {}
        self._size = 0
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._size

    def put(self, connection: Connection) -> None:
        """Closes it instead when it cannot be used again."""
        if not connection.idle:
            connection.abort()
            return
        stack = self._by_engine.get(connection.iid)
        if stack is None:
            stack = self._by_engine[connection.iid] = deque()
        stack.append((self._loop.time(), connection))
        self._size += 1
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S, self._let_go)

    def take(self, iid: str) -> Connection | None:
        """The newest one of that engine that is still good."""
        stack = self._by_engine.get(iid)
        while stack:
            since, connection = stack.pop()
            self._size -= 1
            if connection.idle and self._loop.time() - since < IDLE_S:
                return connection
            connection.abort()
        return None

    def forget(self, connection: Connection) -> None:
        """The engine closed it."""
        stack = self._by_engine.get(connection.iid, deque())
        for entry in stack:
            if entry[1] is connection:
                stack.remove(entry)
                self._size -= 1
                return

    def drop_oldest(self) -> None:
        """Makes room for a connection to another engine."""
        stacks = [stack for stack in self._by_engine.values() if stack]
        if stacks:
            _, connection = min(stacks, key=lambda stack: stack[0][0]).popleft()
            self._size -= 1
            connection.abort()

    def close(self) -> None:
        while self._size:
            self.drop_oldest()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _let_go(self) -> None:
        """Comes back when the oldest that is left is due, at most once in `_SWEEP_S`."""
        now = self._loop.time()
        for stack in self._by_engine.values():
            while stack and stack[0][0] <= now - IDLE_S:
                _, connection = stack.popleft()
                self._size -= 1
                connection.abort()
        left = [stack[0][0] + IDLE_S - now for stack in self._by_engine.values() if stack]
        self._sweep = self._loop.call_later(max(min(left), _SWEEP_S), self._let_go) if left else None
