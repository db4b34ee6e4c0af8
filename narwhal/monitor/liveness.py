"""Stage `liveness`: health checks of engines beside the pass, through the control pool.

The checks carry this router's epoch, so each one also teaches it to an engine's fence: the owner asks every
engine first thing when it restores, and in every pass, so that a restarted engine learns again. A router
without a cluster asks only engines that owe a health check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from narwhal.errors import EngineError, PoolExhausted, StaleEpoch
from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import HealthProbed, ProbeOutcome
from narwhal.policy.fleet import Fleet
from narwhal.ports import ControlClient, ControlGate, EvidenceSink

log = logging.getLogger("narwhal.monitor")

PATH = "/health"
AT_ONCE = 8
"""Checks that begin in one turn of the loop: a fleet of hundreds must not hold it up."""


class HealthChecks:
    """Runs checks, one an engine at a time, and reports what they come to. Main loop only."""

    def __init__(
        self, control: ControlClient, *, sink: EvidenceSink, gate: ControlGate, timeout_s: float
    ) -> None:
        """`timeout_s` bounds one check (`engine.health_timeout_s`)."""
        self._control = control
        self._sink = sink
        self._gate = gate
        self._timeout_s = timeout_s
        self._open: dict[str, asyncio.Task[None]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._replaced: set[asyncio.Task[None]] = set()
        """Cancelled, and not ended yet."""

    def ask(self, engines: Sequence[str]) -> None:
        """Begins to check these engines, those with a check under way aside. Never waits."""
        if engines and (self._starting is None or self._starting.done()):
            self._starting = asyncio.create_task(self._start(engines), name="health-checks")

    def wanted(self, probe: ProbeWanted) -> None:
        """Implements monitor.judge.Prober for health checks."""
        if probe.kind is ProbeKind.HEALTH:
            self._begin(probe.iid)

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
            self._begin(iid)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    def _begin(self, iid: str) -> None:
        if iid not in self._open or self._open[iid].done():
            self._open[iid] = asyncio.create_task(self._check(iid), name=f"health-{iid}")

    async def _check(self, iid: str) -> None:
        outcome, detail = await self._outcome(iid)
        if outcome is not ProbeOutcome.GOOD:
            log.debug("%s was not found healthy: %s", iid, detail)
        self._sink.report(HealthProbed(iid, outcome, detail))

    async def _outcome(self, iid: str) -> tuple[ProbeOutcome, str]:
        try:
            reply = await self._control.get(iid, PATH, timeout_s=self._timeout_s)
        except StaleEpoch as error:
            self._gate.overruled(iid, error.epoch)
            return ProbeOutcome.INCONCLUSIVE, str(error)
        except PoolExhausted as error:
            return ProbeOutcome.INCONCLUSIVE, str(error)
        except EngineError as error:
            return ProbeOutcome.BAD, str(error)
        good = reply.status == 200
        return (ProbeOutcome.GOOD, "") if good else (ProbeOutcome.BAD, f"HTTP {reply.status}")

    async def aclose(self) -> None:
        tasks = [task for task in (self._starting, *self._open.values(), *self._replaced) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LivenessStage:
    """`everyone()`: all engines are asked in every pass, not only those that owe a check (those are asked for
    by the `readmission` stage)."""

    name = "liveness"
    needs_control = True

    def __init__(self, checks: HealthChecks, *, fleet: Fleet, everyone: Callable[[], bool]) -> None:
        self._checks = checks
        self._fleet = fleet
        self._everyone = everyone

    async def run(self, now: float) -> None:
        self._checks.take_in()
        if self._everyone():
            self._checks.ask(self._fleet.engines)

    async def aclose(self) -> None:
        await self._checks.aclose()
