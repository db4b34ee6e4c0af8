"""Stage `readmission`: what time alone brings to engines, and the probes that are due."""

from __future__ import annotations

from narwhal.monitor.judge import Judge


class ReadmissionStage:
    """Steps the fleet's time once a pass. The probes themselves run beside it."""

    name = "readmission"
    needs_control = True

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def run(self, now: float) -> None:
        self._judge.tick(now)

    async def aclose(self) -> None:
        """Holds nothing."""
