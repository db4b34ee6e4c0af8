"""Where legs wait for a seat at an engine (`serving.prefill_concurrency`, `decode_concurrency`).

| a leg | next |
| --- | --- |
| an engine that it may go to has a seat, nobody waits before it | placed at once |
| none has, or somebody waits | in line, first come first served |
| first in line, a seat comes free or an engine returns | placed |
| its time is over: the request's deadline, or what its KV is good for | ends with that error |
| this router may admit no more, and it is a prefill leg | ends with that refusal |
| its client leaves | out of line |

Placement chooses the engines first and looks for a seat among them then: a full role does not spill onto the
other one, and a decode does not go to its producer for a seat.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from narwhal.clock import Clock
from narwhal.errors import CapacityError, DeadlineError, NoSeat
from narwhal.model.placement import Reservation
from narwhal.policy.fleet import Fleet

LOOK_S = 0.05
"""Ownership and engines end and return by the clock: nobody tells of it."""

Placed = Reservation | None


def _open() -> asyncio.Future[Placed]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Wish:
    """One leg. `reserve(now)` places it, None: no engine may take it; raises NoSeat. After `until` (on
    Clock.now) it ends with what `late` makes, before that with what `refusal` tells, None: nothing."""

    reserve: Callable[[float], Placed]
    until: float
    late: Callable[[], DeadlineError]
    refusal: Callable[[], CapacityError | None] = lambda: None
    placed: asyncio.Future[Placed] = field(default_factory=_open)


class LegLine:
    """The line of one leg. `waiting`: those in it, in order; whoever finds it empty may be placed at once."""

    def __init__(self, fleet: Fleet, *, clock: Clock) -> None:
        self.waiting: OrderedDict[Wish, None] = OrderedDict()
        self._fleet = fleet
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, wish: Wish) -> Placed:
        """Waits in line. Raises what `wish` ends with."""
        self.waiting[wish] = None
        self._watch()
        try:
            return await wish.placed
        except asyncio.CancelledError:
            self._give_back(wish)
            raise
        finally:
            self.waiting.pop(wish, None)

    def _give_back(self, wish: Wish) -> None:
        """Of one that was placed in the same turn in which its client left."""
        placed = wish.placed
        if placed.cancelled() or not placed.done() or placed.exception() is not None:
            return
        if (reservation := placed.result()) is not None:
            self._fleet.release(reservation, self._clock.now())
            self.place()

    def place(self) -> None:
        """A seat may be free: whoever is first gets it."""
        now = self._clock.now()
        while self.waiting:
            wish = next(iter(self.waiting))
            if not wish.placed.done():  # Else its client has left in this very turn.
                try:
                    wish.placed.set_result(wish.reserve(now))
                except NoSeat:
                    return
            del self.waiting[wish]

    def _watch(self) -> None:
        if self._timer is None and self.waiting:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock.now()
        for wish in tuple(self.waiting):
            error = wish.late() if now >= wish.until else wish.refusal()
            if error is not None and not wish.placed.done():
                del self.waiting[wish]
                wish.placed.set_exception(error)
        self.place()
        self._watch()


class Seats:
    """Both lines."""

    def __init__(self, fleet: Fleet, *, clock: Clock) -> None:
        self.prefill = LegLine(fleet, clock=clock)
        self.decode = LegLine(fleet, clock=clock)

    def freed(self) -> None:
        """After a reservation has ended."""
        for line in (self.prefill, self.decode):
            if line.waiting:
                line.place()
