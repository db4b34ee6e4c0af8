"""Turns: one thing at a time at each engine, for things that two engines take part in.

Each stands in the line of every engine that it needs, and begins when all of them are free. Who came later
may begin before it where an engine would idle otherwise: one that hangs holds up its own partners, and not
theirs. That happens to nobody more often than `MOST_PASSED` times: who came first of those begins next, so
nobody waits for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, takewhile

MOST_PASSED = 32


@dataclass(slots=True, eq=False)
class _Turn:
    """`passed`: how many that came later began before it."""

    number: int
    engines: tuple[str, ...]
    has_come: asyncio.Event = field(default_factory=asyncio.Event)
    passed: int = 0


class Turns:
    """Main loop only. Memory is of what waits and runs."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[_Turn]] = {}
        """In the order of coming, with those that have their turn."""
        self._taken: set[str] = set()
        self._numbers = count()

    def __bool__(self) -> bool:
        """Somebody waits or has a turn."""
        return bool(self._lines)

    @asynccontextmanager
    async def of(self, engines: Iterable[str]) -> AsyncIterator[None]:
        """Waits until all of them are free; they are taken until it ends."""
        turn = _Turn(next(self._numbers), tuple(dict.fromkeys(engines)))
        for iid in turn.engines:
            self._lines.setdefault(iid, deque()).append(turn)
        try:
            self._call(turn.engines)
            await turn.has_come.wait()
            yield
        finally:
            self._leave(turn)

    def _leave(self, turn: _Turn) -> None:
        if turn.has_come.is_set():
            self._taken.difference_update(turn.engines)
        for iid in turn.engines:
            self._lines[iid].remove(turn)
            if not self._lines[iid]:
                del self._lines[iid]
        self._call(turn.engines)

    def _call(self, engines: Iterable[str]) -> None:
        """Whoever may begin in these lines, who came first before the others."""
        free = [iid for iid in engines if iid not in self._taken]
        waiting = {turn for iid in free for turn in self._lines.get(iid, ())}
        for turn in sorted(waiting, key=lambda one: one.number):
            if self._may_begin(turn):
                self._begin(turn)

    def _may_begin(self, turn: _Turn) -> bool:
        if not self._taken.isdisjoint(turn.engines):
            return False
        return all(earlier.passed < MOST_PASSED for earlier in self._before(turn))

    def _begin(self, turn: _Turn) -> None:
        for earlier in self._before(turn):
            earlier.passed += 1
        self._taken.update(turn.engines)
        turn.has_come.set()

    def _before(self, turn: _Turn) -> Iterator[_Turn]:
        for iid in turn.engines:
            yield from takewhile(lambda one: one is not turn, self._lines[iid])
