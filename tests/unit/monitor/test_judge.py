"""Who judges: the owner of the fleet and nobody else."""

from __future__ import annotations

import pytest

from narwhal.clock import SystemClock
from narwhal.cluster.local import LocalGate
from narwhal.model.effect import ProbeKind, ProbeWanted, Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.monitor.judge import Judge
from narwhal.policy.fleet import Fleet
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.unit.policy.test_judgement import fleet_of


class Wanted:
    """A monitor.judge.Prober that keeps what it is asked for."""

    def __init__(self) -> None:
        self.probes: list[ProbeWanted] = []

    def wanted(self, probe: ProbeWanted) -> None:
        self.probes.append(probe)


class Court:
    def __init__(self) -> None:
        self.fleet: Fleet = fleet_of()
        self.gate, self.recorder, self.metrics = LocalGate(), MemoryRecorder(), RouterMetrics()
        self.judge = Judge(
            self.fleet, gate=self.gate, recorder=self.recorder, metrics=self.metrics, clock=SystemClock()
        )
        self.judge.prober = self.prober = Wanted()

    def fails(self, failure: FailureClass) -> None:
        for number in range(3):
            way = f"{failure}:x"
            self.judge.report(LegFailed("d0", Leg.DECODE, failure, way, "it broke", "", b"%d" % number))


@pytest.mark.parametrize("failure", [FailureClass.CONNECTION, FailureClass.STREAM])
def test_what_a_router_sees_that_owns_no_more_is_no_verdict(failure: FailureClass) -> None:
    court = Court()
    court.gate.shutting_down = True
    court.fails(failure)
    assert (court.recorder.events, court.prober.probes) == ([], [])
    assert court.fleet.standing(0.0).failures == {}


def test_the_owner_s_is_told_and_looked_into() -> None:
    court = Court()
    court.fails(FailureClass.STREAM)
    assert [kind for kind, _ in court.recorder.events] == ["hold"]
    assert [probe.iid for probe in court.prober.probes] == ["d0"]


def test_verdicts_of_a_pass_that_outlived_its_ownership_are_not_told() -> None:
    court = Court()
    court.gate.shutting_down = True
    told = Told("probation", {"iid": "d0", "reason": "it is slow", "enforced": True})
    court.judge.carry_out([told, ProbeWanted(ProbeKind.HEALTH, "d0")], 1.0)
    assert (court.recorder.events, court.prober.probes) == ([], [])
