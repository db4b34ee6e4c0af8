"""Further attempts of a request: the shell around `policy.retry` (serving.md section 1.8)."""

from __future__ import annotations

from collections.abc import Callable

from narwhal.clock import Clock
from narwhal.errors import NarwhalError
from narwhal.policy.retry import RetryPolicy
from narwhal.serving.job import Job


class Retries:
    """`draw` gives random numbers from 0 to below 1."""

    def __init__(self, policy: RetryPolicy, *, clock: Clock, draw: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._draw = draw
        self.served = policy.served

    @property
    def credits(self) -> float:
        return self._policy.credits

    def pause_s(self, job: Job, error: NarwhalError) -> float | None:
        """Seconds until the attempt that may follow the failed one; None: that was the last."""
        if job.stream.started:
            return None
        left_s = job.deadline.remaining_s(self._clock.now())
        return self._policy.pause_before_retry(
            job.entry.row.attempts, error, left_s=left_s, draw=self._draw()
        )

    async def rest(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
