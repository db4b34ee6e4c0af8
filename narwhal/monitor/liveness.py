"""Stage `liveness`: health checks of engines beside the pass, through the control pool.

The checks carry this router's epoch, so each one also teaches it to an engine's fence: the owner asks every
engine first thing when it restores, and in every pass, so that a restarted engine learns again. A router
without a cluster asks only engines that owe a good check before they are used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from narwhal.clock import Clock
from narwhal.errors import EngineError, StaleEpoch
from narwhal.policy.fleet import Fleet
from narwhal.ports import ControlClient, ControlGate

log = logging.getLogger("narwhal.monitor")

PATH = "/health"
AT_ONCE = 8
"""Checks that begin in one turn of the loop: a fleet of hundreds must not hold it up."""


class HealthChecks:
    """Runs checks, one an engine at a time. Main loop only."""

    def __init__(
        self, control: ControlClient, *, fleet: Fleet, gate: ControlGate, clock: Clock, timeout_s: float
    ) -> None:
        """`timeout_s` bounds one check (`engine.health_timeout_s`)."""
        self._control = control
        self._fleet = fleet
        self._gate = gate
        self._clock = clock
        self._timeout_s = timeout_s
        self._open: dict[str, asyncio.Task[None]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._replaced: set[asyncio.Task[None]] = set()
        """Cancelled, and not ended yet."""

    def ask(self, engines: Sequence[str]) -> None:
        """Begins to check these engines, those with a check under way aside. Never waits."""
        if engines and (self._starting is None or self._starting.done()):
            self._starting = asyncio.create_task(self._start(engines), name="health-checks")

    def introduce(self, engines: Sequence[str]) -> None:
        """Begins to check all of these engines anew. Never waits.

        For a new epoch: a check under way may have been sent without it.
        """
        for task in (self._starting, *self._open.values()):
            if task is not None and not task.done():
                self._replaced.add(task)
                task.add_done_callback(self._replaced.discard)
                task.cancel()
        self._starting = None
        self._open = {iid: task for iid, task in self._open.items() if task not in self._replaced}
        self.ask(engines)

    def take_in(self) -> None:
        """Forgets the checks that have ended. Raises what one ended with, if not by the engine's doing."""
        ended = [iid for iid, task in self._open.items() if task.done()]
        for task in [self._open.pop(iid) for iid in ended]:
            task.result()

    async def _start(self, engines: Iterable[str]) -> None:
        for number, iid in enumerate(engines, start=1):
            if iid not in self._open or self._open[iid].done():
                self._open[iid] = asyncio.create_task(self._check(iid), name=f"health-{iid}")
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _check(self, iid: str) -> None:
        try:
            reply = await self._control.get(iid, PATH, timeout_s=self._timeout_s)
        except StaleEpoch as error:
            self._gate.overruled(iid, error.epoch)
        except EngineError as error:
            log.debug("%s was not found healthy: %s", iid, error)
        else:
            if reply.status == 200:
                self._fleet.healthy(iid, self._clock.now())

    async def aclose(self) -> None:
        tasks = [task for task in (self._starting, *self._open.values(), *self._replaced) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LivenessStage:
    """`everyone()`: all engines are asked in every pass, not only those that owe a check."""

    name = "liveness"
    needs_control = True

    def __init__(self, checks: HealthChecks, *, fleet: Fleet, everyone: Callable[[], bool]) -> None:
        self._checks = checks
        self._fleet = fleet
        self._everyone = everyone

    async def run(self, now: float) -> None:
        self._checks.take_in()
        self._checks.ask(self._fleet.engines if self._everyone() else self._fleet.owing())

    async def aclose(self) -> None:
        await self._checks.aclose()
