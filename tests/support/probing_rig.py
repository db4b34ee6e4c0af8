"""What judges and probes the engines of a fleet, wired as in a router that always owns, without serving."""

from __future__ import annotations

from dataclasses import dataclass

from narwhal.cluster.local import LocalGate
from narwhal.engine.control import LeanControl
from narwhal.engine.wheel import never
from narwhal.model.settings import FleetConfig
from narwhal.monitor.judge import Judge
from narwhal.policy.fleet import Fleet
from narwhal.runtime.probing import Probing, ProbingParts
from narwhal.serving.decodes import OpenDecodes
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.ticking import TickingClock


@dataclass
class Wired:
    clock: TickingClock
    gate: LocalGate
    recorder: MemoryRecorder
    metrics: RouterMetrics
    fleet: Fleet
    control: LeanControl
    judge: Judge
    probing: Probing


def wired(config: FleetConfig, *, connections: int = 16) -> Wired:
    """Close its `probing` at the end."""
    clock, gate, recorder, metrics = TickingClock(), LocalGate(), MemoryRecorder(), RouterMetrics()
    fleet = Fleet(config, {})
    control = LeanControl(config.engines, connections=connections, connect_timeout_s=1.0)
    control.date_by(clock.now)
    judge = Judge(fleet, gate=gate, recorder=recorder, metrics=metrics, clock=clock)
    parts = ProbingParts(
        control,
        OpenDecodes(clock).quiet_s,
        fleet,
        judge=judge,
        gate=gate,
        clock=clock,
        stood_still_s=never,
    )
    return Wired(clock, gate, recorder, metrics, fleet, control, judge, Probing(config, parts))
