"""The monitor loop: passes on a fixed grid of instants, stages in fixed order, nothing stops the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from narwhal.clock import Clock
from narwhal.errors import InvariantViolation
from narwhal.model.monitoring import STAGES, StageReport
from narwhal.monitor.stage import Stage, run_stage, stage_deadline_s
from narwhal.policy.cadence import Cadence
from narwhal.policy.monitoring import Monitoring, MonitoringEvent
from narwhal.ports import ControlGate, Metrics, Recorder

log = logging.getLogger("narwhal.monitor")


@dataclass(frozen=True, slots=True)
class PassRecord:
    """Takes in what a pass did: the degraded flag, the journal, the metrics registry, the log."""

    monitoring: Monitoring
    recorder: Recorder
    metrics: Metrics

    def stage_ended(self, report: StageReport) -> None:
        events = self.monitoring.stage_ended(report)
        self.metrics.stage(report)
        if any(not event.repeated for event in events):
            # The traceback once for each streak and class; the journal has every failure.
            log.warning("monitor stage %s failed\n%s", report.stage, report.detail)
        self._journal(events)

    def pass_ended(self) -> None:
        events = self.monitoring.pass_ended()
        for event in events:
            log.warning("%s: %s", event.kind, dict(event.fields))
        self._journal(events)

    def _journal(self, events: Iterable[MonitoringEvent]) -> None:
        for event in events:
            self.recorder.event(event.kind, event.fields, repeated=event.repeated)


class MonitorLoop:
    """Runs the stages of a pass, one pass every interval.

    `gate` is the bare control gate: a degraded owner goes on monitoring. Stages that need control are
    skipped while this router does not own the fleet.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        record: PassRecord,
        *,
        gate: ControlGate,
        clock: Clock,
        interval_s: float,
    ) -> None:
        _check_order([stage.name for stage in stages])
        self._stages = tuple(stages)
        self._record = record
        self._gate = gate
        self._clock = clock
        self._interval_s = interval_s
        self._deadline_s = stage_deadline_s(interval_s)
        self.last_pass_s = 0.0
        """How long the last whole pass took, in seconds."""

    async def run(self) -> None:
        """Passes until cancelled; a pass that is cancelled counts for nothing."""
        cadence = Cadence(interval_s=self._interval_s, start=self._clock.now())
        try:
            while True:
                await self._clock.sleep(cadence.delay_s(self._clock.now()))
                await self.run_pass()
        finally:
            for stage in self._stages:
                await stage.aclose()

    async def run_pass(self) -> None:
        """One pass. Ownership is compared with the clock before each stage, at that instant.

        Requests are served between two stages: a pass over hundreds of engines must not be one piece.
        """
        started = self._clock.now()
        for stage in self._stages:
            await asyncio.sleep(0)
            if stage.needs_control and not self._gate.may_admit(self._clock.now()):
                continue
            self._record.stage_ended(await run_stage(stage, clock=self._clock, deadline_s=self._deadline_s))
        self._record.pass_ended()
        self.last_pass_s = self._clock.now() - started


def _check_order(names: Sequence[str]) -> None:
    """Raises InvariantViolation unless the stages stand in the order of failures.md, each once."""
    if list(names) != [name for name in STAGES if name in names]:
        raise InvariantViolation(f"monitor stages {', '.join(names)} break the order {', '.join(STAGES)}")
