"""When each engine last gave no answer where it should have: what comes from it then may have been under way.

| evidence | noted |
| --- | --- |
| no connection to it, one that was lost before a response, no answer in time, for a leg or a count | yes |
| a health check was missed, unless its streams brought tokens meanwhile | yes |
| its inference probe was bad | yes |
| anything else | no |

Every ejection for the want of answers has one of these before it. Nothing is held against anybody here.
"""

from __future__ import annotations

from math import inf

from narwhal.model.evidence import (
    CountFailed,
    Evidence,
    HealthProbed,
    InferenceProbed,
    LegFailed,
    LivenessSwept,
    ProbeOutcome,
)
from narwhal.policy.faults import NO_ANSWER


class Troubles:
    """One moment an engine at most. Times are on Clock.now."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: dict[str, float] = {}

    def note(self, evidence: Evidence, now: float) -> None:
        match evidence:
            case LegFailed() | CountFailed():
                silent = evidence.failure in NO_ANSWER
            case HealthProbed() | LivenessSwept():
                silent = evidence.outcome is ProbeOutcome.BAD and not evidence.streaming
            case InferenceProbed():
                silent = evidence.outcome is ProbeOutcome.BAD
            case _:
                return
        if silent:
            self._newest[evidence.iid] = now

    def since(self, iid: str, at: float) -> bool:
        """Then or later it gave no answer where it should have."""
        return self._newest.get(iid, -inf) >= at
