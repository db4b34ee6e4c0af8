"""One client request from arrival to the journal; reads as the flow of architecture.md section 4."""

from __future__ import annotations

from narwhal.errors import EngineError, HandoffExpired
from narwhal.ports import Inbound
from narwhal.serving.attempt import Attempt
from narwhal.serving.doors import Doors
from narwhal.serving.job import Job
from narwhal.serving.ledger import Ledger
from narwhal.serving.retries import Retries
from narwhal.serving.sizing import Sizer

_NOBODY: frozenset[str] = frozenset()


class Handler:
    """Implements `ports.RequestHandler`."""

    def __init__(
        self, ledger: Ledger, *, doors: Doors, sizer: Sizer, attempt: Attempt, retries: Retries
    ) -> None:
        self._ledger = ledger
        self._doors = doors
        self._sizer = sizer
        self._attempt = attempt
        self._retries = retries

    async def serve(self, inbound: Inbound) -> None:
        """One coroutine to the attempts: each below another costs a call at every step."""
        with self._ledger.open(inbound, self._doors.gate.epoch) as entry:
            waiter = await self._doors.admit(entry, self._ledger.inflight)
            request = await inbound.read()
            entry.decoded(request)
            if (lack := self._doors.lack()) is not None:
                raise lack
            if waiter is not None:
                await self._doors.turn(waiter)
            deadline = self._doors.deadline(request)
            demand = await self._sizer.measure(request, deadline)
            entry.row.input_len = demand.input_tokens
            job, avoid = Job(entry, request, inbound.stream, deadline, demand), _NOBODY
            while True:
                self._doors.check_deadline(deadline)
                try:
                    await self._attempt.run(job, avoid)
                    return self._retries.served()
                except (EngineError, HandoffExpired) as error:
                    pause_s = self._retries.pause_s(job, error)
                    if pause_s is None:
                        raise
                    if isinstance(error, EngineError):
                        avoid |= entry.engines_of_attempt()
                await self._retries.rest(pause_s)
                self._doors.demand()
