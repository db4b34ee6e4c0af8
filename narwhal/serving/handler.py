"""One client request from arrival to the journal; reads as the flow of architecture.md section 4."""

from __future__ import annotations

from collections.abc import Set

from narwhal.errors import EngineError, HandoffExpired
from narwhal.policy.retry import RetryPolicy
from narwhal.ports import Inbound
from narwhal.serving.attempt import Attempt
from narwhal.serving.doors import Doors
from narwhal.serving.job import Job
from narwhal.serving.ledger import Ledger
from narwhal.serving.sizing import Sizer


class Handler:
    """Implements `ports.RequestHandler`."""

    def __init__(
        self, ledger: Ledger, *, doors: Doors, sizer: Sizer, attempt: Attempt, retry: RetryPolicy
    ) -> None:
        self._ledger = ledger
        self._doors = doors
        self._sizer = sizer
        self._attempt = attempt
        self._retry = retry

    async def serve(self, inbound: Inbound) -> None:
        with self._ledger.open(inbound, self._doors.epoch) as entry:
            await self._doors.admit(self._ledger.inflight)
            request = await inbound.read()
            entry.decoded(request)
            self._doors.check_engines()
            deadline = self._doors.deadline(request)
            demand = await self._sizer.measure(request, deadline)
            entry.sized(demand)
            await self._attempts(Job(entry, request, inbound.stream, deadline, demand))

    async def _attempts(self, job: Job) -> None:
        avoid: Set[str] = frozenset()
        while True:
            self._doors.check_deadline(job.deadline)
            try:
                return await self._attempt.run(job, avoid)
            except (EngineError, HandoffExpired) as error:
                if job.stream.started or not self._retry.another(job.entry.row.attempts, error):
                    raise
                avoid |= job.entry.engines_of_attempt()
