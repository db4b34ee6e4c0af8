"""Stage `health`: closes the drift windows that are over and applies their verdicts."""

from __future__ import annotations

from narwhal.monitor.judge import Judge
from narwhal.policy.pacing import Pacing


class HealthStage:
    """What stage `rollover` has put into the windows is judged here, a pass later at the earliest."""

    name = "health"
    needs_control = True

    def __init__(self, pacing: Pacing, judge: Judge) -> None:
        self._pacing = pacing
        self._judge = judge

    async def run(self, now: float) -> None:
        self._judge.carry_out(self._pacing.close(now), now)

    async def aclose(self) -> None:
        """Holds nothing."""
