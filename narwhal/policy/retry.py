"""Whether and when a failed attempt is followed by another (serving.md section 1.8). Pure.

| failure before visible output | another attempt |
| --- | --- |
| transport error, timeout of the engine, broken or refused stream, error object | yes |
| invalid or expired KV handoff | yes |
| status 408, 429, 5xx | yes |
| any other status | no: the next engine would say the same |
| suspected poison | no: it would fail a third engine too |
| no seat in our own pool | no: another attempt would wait in the same queue |
| anything else (deadline, cancellation, capacity) | no |

The pause before the n-th retry is drawn evenly from 0 to min(`retry_cap_s`, `retry_base_s` · 2^(n-1)): "full
jitter" of Brooker, *Exponential Backoff And Jitter* (AWS Architecture Blog, 2015), which spreads the retries
of a failure that met many at once. One that would end after the request's deadline is no retry at all.

| event | credits |
| --- | --- |
| start | `retry_budget` |
| a retry begins | - 1; with less than 1 there is none |
| a request is served | + `retry_replenish`, at most `retry_budget` |
"""

from __future__ import annotations

from narwhal.errors import (
    EngineError,
    EngineRefused,
    HandoffExpired,
    NarwhalError,
    PoolExhausted,
    SuspectedPoison,
)
from narwhal.model.settings import ServingSettings
from narwhal.policy.faults import BACK_PRESSURE

_DIGITS = 9
"""Ten times 0.1 is less than 1 in binary: credits are kept to a billionth."""


class RetryPolicy:
    """Retries of one router: `max_attempts` complete prefill+decode attempts a request, credits for all."""

    __slots__ = ("_base_s", "_budget", "_cap_s", "_replenish", "credits", "max_attempts")

    def __init__(self, settings: ServingSettings) -> None:
        self.max_attempts = settings.max_attempts
        self.credits = self._budget = float(settings.retry_budget)
        self._base_s = settings.retry_base_s
        self._cap_s = settings.retry_cap_s
        self._replenish = settings.retry_replenish

    def pause_before_retry(
        self, made: int, error: NarwhalError, *, left_s: float, draw: float
    ) -> float | None:
        """Seconds to wait before the next attempt, for which a credit is taken; None: there is none.

        After `made` attempts, the last of which ended with `error` before visible output. `left_s` to the
        request's deadline; `draw` is a random number from 0 to below 1.
        """
        if made >= self.max_attempts or not retriable(error) or self.credits < 1:
            return None
        pause_s = draw * min(self._cap_s, self._base_s * 2.0 ** (made - 1))
        if pause_s >= left_s:
            return None
        self.credits = round(self.credits - 1, _DIGITS)
        return pause_s

    def served(self) -> None:
        """One request was served."""
        if self.credits < self._budget:
            self.credits = min(self._budget, round(self.credits + self._replenish, _DIGITS))


def retriable(error: NarwhalError) -> bool:
    """True when a fresh attempt on other engines could end differently."""
    match error:
        case EngineRefused(status=status):
            return status in BACK_PRESSURE or status >= 500
        case PoolExhausted() | SuspectedPoison():
            return False
        case _:
            return isinstance(error, EngineError | HandoffExpired)
