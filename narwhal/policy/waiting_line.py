"""The places of one router and the line before them (serving.md section 1.1). Pure.

Nobody waits while a place is free, and who came first is placed first.

| event | all places taken | a place is free |
| --- | --- | --- |
| take | no | a place without a ticket |
| join | waits, last in line; line full: no | never asked |

| event | ticket waits | ticket placed | ticket out |
| --- | --- | --- | --- |
| give, leave of a placed one | the first in line is placed | - | - |
| leave | out | its place is given | nothing |
| expire, its time is over | out | nothing | nothing |
| drop_first, it is the first | out | nothing | nothing |
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from narwhal.errors import InvariantViolation


class Standing(Enum):
    WAITING = "waiting"
    PLACED = "placed"
    OUT = "out"


@dataclass(slots=True, eq=False)
class Ticket:
    """One who has to wait, from `since` to `until` at the longest (both on Clock.now)."""

    since: float
    until: float
    standing: Standing = Standing.OUT


T = TypeVar("T", bound=Ticket)


class WaitingLine(Generic[T]):
    """`limit` places and room for `capacity` tickets in line, first come first served."""

    __slots__ = ("_line", "capacity", "high_water", "limit", "taken")

    def __init__(self, *, limit: int, capacity: int) -> None:
        self.limit = limit
        self.capacity = capacity
        self.taken = 0
        self.high_water = 0
        """Most tickets that ever waited at once."""
        self._line: OrderedDict[T, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._line)

    def take(self) -> bool:
        """A place at once, if one is free. Give each place back exactly once."""
        if self.taken >= self.limit:
            return False
        self.taken += 1
        return True

    def join(self, ticket: T) -> bool:
        """False: the line is full. Ask `take` first."""
        if len(self._line) >= self.capacity:
            return False
        ticket.standing = Standing.WAITING
        self._line[ticket] = None
        self.high_water = max(self.high_water, len(self._line))
        return True

    def give(self) -> T | None:
        """A place comes back: the ticket that has it now, None while nobody waits."""
        if not self._line:
            self.taken -= 1
            return None
        ticket, _ = self._line.popitem(last=False)
        ticket.standing = Standing.PLACED
        return ticket

    def leave(self, ticket: T) -> T | None:
        """Its owner is at the end, however that came. The ticket that has its place now, if any has."""
        standing, ticket.standing = ticket.standing, Standing.OUT
        if standing is Standing.WAITING:
            del self._line[ticket]
        return self.give() if standing is Standing.PLACED else None

    def expire(self, now: float) -> list[T]:
        """Those whose time is over, no longer in line; in order, may be empty."""
        over = [ticket for ticket in self._line if now >= ticket.until]
        for ticket in over:
            self.leave(ticket)
        return over

    def drop_first(self) -> T | None:
        """The first in line, no longer in it; None while nobody waits."""
        ticket = next(iter(self._line), None)
        if ticket is not None:
            self.leave(ticket)
        return ticket

    def check_invariants(self) -> None:
        """Raises InvariantViolation unless the line is bounded and nobody waits for a free place."""
        if not 0 <= self.taken <= self.limit or len(self._line) > self.capacity:
            raise InvariantViolation("more places taken, or more waiting, than there are")
        if self._line and self.taken < self.limit:
            raise InvariantViolation("somebody waits while a place is free")
