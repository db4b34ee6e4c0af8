"""One stage of the monitor pass and the boundary around it (failures.md section 1).

Whatever a stage does, it ends as a StageReport within its deadline, and the stages after it still run.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Protocol

from narwhal.clock import Clock
from narwhal.errors import InvariantViolation
from narwhal.model.monitoring import StageReport

LEAST_DEADLINE_S = 5.0
DEADLINE_INTERVALS = 5


class Stage(Protocol):
    """Observes, decides on pure facts, acts. Never waits for an engine: what may hang runs as a task
    beside the pass, started by one run and taken in by a later one."""

    @property
    def name(self) -> str:
        """One of `narwhal.model.monitoring.STAGES`."""

    @property
    def needs_control(self) -> bool:
        """True for stages that only the owner of the fleet runs."""

    async def run(self, now: float) -> None:
        """One turn. Anything it raises is a stage failure under the exception's class name."""

    async def aclose(self) -> None:
        """Ends what runs beside the pass."""


def stage_deadline_s(interval_s: float) -> float:
    """The larger of 5 s and 5 × the monitor interval: never unbounded."""
    return max(LEAST_DEADLINE_S, DEADLINE_INTERVALS * interval_s)


async def run_stage(stage: Stage, *, clock: Clock, deadline_s: float) -> StageReport:
    """Runs one stage and tells how it ended.

    Only two things get through: the cancellation of the pass itself and InvariantViolation, after which
    nothing this process believes may be trusted.
    """
    started = clock.now()
    failure: BaseException | None = None
    try:
        async with asyncio.timeout(deadline_s):
            await stage.run(started)
    except InvariantViolation:
        raise
    except asyncio.CancelledError as error:
        if _pass_is_cancelled():
            raise
        # The stage awaited something that somebody else cancelled: its failure, not the end of the pass.
        failure = error
    except Exception as error:
        failure = error
    duration_s = clock.now() - started
    if failure is None and duration_s > deadline_s:
        # Work without an await cannot be interrupted, but it does not go unnoticed.
        failure = TimeoutError(f"the stage held the loop for {duration_s:.1f} s")
    return _report(stage.name, failure, at=clock.wall(), duration_s=duration_s)


def _pass_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _report(name: str, failure: BaseException | None, *, at: float, duration_s: float) -> StageReport:
    if failure is None:
        return StageReport(stage=name, at=at, duration_s=duration_s)
    detail = "".join(traceback.format_exception(failure))
    return StageReport(name, at, duration_s, failure=type(failure).__name__, detail=detail)
