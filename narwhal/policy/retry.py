"""Whether a failed attempt may be followed by another (serving.md section 1.8). Pure.

| failure before visible output | another attempt |
| --- | --- |
| transport error, timeout of the engine, broken or refused stream, error object | yes |
| invalid or expired KV handoff | yes |
| status 408, 429, 5xx | yes |
| any other status | no: the next engine would say the same |
| no seat in our own pool | no: another attempt would wait in the same queue |
| anything else (deadline, cancellation, capacity) | no |
"""

from __future__ import annotations

from narwhal.errors import EngineError, EngineRefused, HandoffExpired, NarwhalError, PoolExhausted


class RetryPolicy:
    """`max_attempts` complete prefill+decode attempts a request, at least 1."""

    __slots__ = ("max_attempts",)

    def __init__(self, max_attempts: int) -> None:
        self.max_attempts = max_attempts

    def another(self, made: int, error: NarwhalError) -> bool:
        """After `made` attempts, the last of which ended with `error` before visible output."""
        return made < self.max_attempts and retriable(error)


def retriable(error: NarwhalError) -> bool:
    """True when a fresh attempt on other engines could end differently."""
    match error:
        case EngineRefused(status=status):
            return status in (408, 429) or status >= 500
        case PoolExhausted():
            return False
        case _:
            return isinstance(error, EngineError | HandoffExpired)
