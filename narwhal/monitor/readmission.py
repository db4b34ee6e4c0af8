"""Stage `readmission`: what time alone brings to engines, and the probes that are due.

The cadence is policy's (`policy.ejections`, `policy.checks`); the probes run beside the pass.
"""

from __future__ import annotations

from narwhal.monitor.judge import Judge
from narwhal.monitor.prober import Prober


class ReadmissionStage:
    """Steps the fleet's time once a pass and takes in the probes that have ended."""

    name = "readmission"
    needs_control = True

    def __init__(self, judge: Judge, prober: Prober) -> None:
        self._judge = judge
        self._prober = prober

    async def run(self, now: float) -> None:
        # First what is due: a bug in one probe keeps no engine from the next.
        self._judge.tick(now)
        self._prober.take_in()

    async def aclose(self) -> None:
        await self._prober.aclose()
