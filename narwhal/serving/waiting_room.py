"""Where requests wait for a place (serving.md section 1.1): the shell around `policy.waiting_line`.

One timer looks after everybody who waits, twenty times a second: whose time is over, and whether this
router may still place anybody. Ownership ends by the clock, so it must be looked at; nobody tells of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from narwhal.clock import Clock
from narwhal.errors import CapacityError, DeadlineError, Overloaded, QueueExpired
from narwhal.policy.admission import Admission
from narwhal.policy.waiting_line import Ticket, WaitingLine
from narwhal.serving.ledger import Entry

LOOK_S = 0.05

Verdict = CapacityError | DeadlineError | None


def _open_verdict() -> asyncio.Future[Verdict]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, kw_only=True)
class Waiter(Ticket):
    """A request in line. `verdict` comes once: None = it is its turn, else why it leaves."""

    entry: Entry
    verdict: asyncio.Future[Verdict] = field(default_factory=_open_verdict)


class WaitingRoom:
    """The places of one router with a queue. `refusal`: why nobody can be placed now, a fresh exception each
    time."""

    def __init__(
        self, admission: Admission, *, clock: Clock, refusal: Callable[[], CapacityError | None]
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._refusal = refusal
        self._line: WaitingLine[Waiter] = admission.line()
        self._timer: asyncio.TimerHandle | None = None
        # Made once: a bound method costs an allocation each time it is named.
        self._give_back = self._give

    @property
    def queued(self) -> int:
        return self._line.waiting

    @property
    def high_water(self) -> int:
        """Most requests that ever waited at once."""
        return self._line.high_water

    def enter(self, entry: Entry) -> Waiter | None:
        """A place at once (None), or a place in line, which `turn` waits for. Both end with the entry.

        Raises Overloaded when neither is left.
        """
        if self._line.take():
            entry.at_end(self._give_back)
            return None
        now = self._clock.now()
        waiter = Waiter(now, self._admission.waits_until(now, arrived_at=entry.began), entry=entry)
        if not self._line.join(waiter):
            raise Overloaded(self._admission.full)
        entry.at_end(partial(self._leave, waiter))
        self._watch()
        return waiter

    async def turn(self, waiter: Waiter) -> None:
        """Returns when the waiter has its place. Raises QueueExpired, or what emptied the line."""
        verdict = await waiter.verdict
        if verdict is not None:
            raise verdict

    # --- ends ------------------------------------------------------------------------------------

    def _give(self) -> None:
        self._called(self._line.give())

    def _leave(self, waiter: Waiter) -> None:
        self._note_wait(waiter)
        self._called(self._line.leave(waiter))

    def _called(self, waiter: Waiter | None) -> None:
        """A place went to `waiter`. One that is being cancelled passes it on with its own end."""
        if waiter is not None:
            self._tell(waiter, None)

    def _tell(self, waiter: Waiter, verdict: Verdict) -> None:
        self._note_wait(waiter)
        if not waiter.verdict.done():
            waiter.verdict.set_result(verdict)

    def _note_wait(self, waiter: Waiter) -> None:
        """The wait ends with the first of its ends."""
        row = waiter.entry.row
        if row.queue_wait_s is None:
            row.queue_wait_s = self._clock.now() - waiter.since

    # --- while somebody waits --------------------------------------------------------------------

    def _watch(self) -> None:
        if self._timer is None and self._line.waiting:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        for waiter in self._line.expire(self._clock.now()):
            self._tell(waiter, QueueExpired("the wait for a place was too long"))
        while (refusal := self._refusal()) is not None and (first := self._line.drop_first()) is not None:
            self._tell(first, refusal)
        self._watch()
