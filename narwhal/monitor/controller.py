"""Stage `controller`: role control, at most one move a pass."""

from __future__ import annotations

from narwhal.monitor.judge import Judge
from narwhal.policy.fleet import Fleet


class ControllerStage:
    """The fleet decides on what it holds in memory; the judge tells it."""

    name = "controller"
    needs_control = True

    def __init__(self, fleet: Fleet, judge: Judge) -> None:
        self._fleet = fleet
        self._judge = judge

    async def run(self, now: float) -> None:
        self._judge.carry_out(self._fleet.control(now), now)

    async def aclose(self) -> None:
        """Holds nothing."""
