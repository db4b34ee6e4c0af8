from __future__ import annotations

from dataclasses import replace

from narwhal.model.control import HealthStatus
from narwhal.model.engine import EngineSpec, Role
from narwhal.model.placement import Demand
from narwhal.model.request import Outcome
from narwhal.monitor.gate import MonitoredGate
from narwhal.ports import ControlGate
from tests.support.own_router import ADMISSION, NOW, POOL, Own


def test_a_router_in_control_of_engines_for_both_legs_is_ready() -> None:
    own = Own()
    readiness = own.views.readiness()
    assert (readiness.ready, readiness.epoch, readiness.holder) == (True, 0, "")
    assert own.views.health().status is HealthStatus.OK


def test_a_shutdown_is_seen_at_once() -> None:
    own = Own()
    own.gate.shutting_down = True
    assert own.views.readiness().reason == "shutting down"


def test_degraded_monitoring_closes_readiness_and_admission_with_one_reason() -> None:
    own = Own()
    own.fail_a_pass()
    gate: ControlGate = MonitoredGate(own.gate, own.monitoring, wave=own.fleet.upkeep.wave)
    assert own.views.readiness().reason == gate.refusal(NOW) == "monitoring degraded: handoff OSError"
    assert own.views.health().status is HealthStatus.DEGRADED
    assert not gate.may_admit(NOW)
    assert own.gate.may_admit(NOW), "the bare gate stays open: monitoring goes on"


def test_a_leg_that_pins_leave_without_an_engine_is_not_ready() -> None:
    own = Own(EngineSpec("p0", "http://p0", Role.PREFILL, pin=True))
    assert own.views.readiness().reason == "no available engines"
    health = own.views.health()
    assert (health.status, health.instances, health.available_instances) == (HealthStatus.DEGRADED, 1, 1)


def test_what_was_offered_includes_what_is_in_flight_here() -> None:
    own = Own()
    own.totals.finished(Outcome.SERVED)
    counters = own.views.state().counters
    assert (counters.served, counters.offered) == (1, 1 + ADMISSION.inflight)


def test_state_reads_every_part() -> None:
    own = Own()
    reservation = own.fleet.reserve_prefill(Demand(10, 10), NOW)
    assert reservation is not None
    own.fail_a_pass()
    state = own.views.state()
    assert state.resident["p0"].prefill == 1
    assert state.pinned == ("d1",)
    assert state.roles == {"p0": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
    assert state.monitoring.stages["handoff"].failures == 1
    assert (state.serving.attempts, state.http_pools, state.admission) == (3, {"data": POOL}, ADMISSION)
    assert (state.thresholds, state.slo) == (own.config.controller.thresholds, own.config.slo)


def test_the_sample_tells_the_floor_and_what_it_lacks() -> None:
    own = Own()
    sample = own.views.sample(NOW, 0.25)
    assert sample.eligible == {"prefill": 1, "decode": 2}
    assert sample.shortfall == {"prefill": 0, "decode": 1}
    assert (sample.ready, sample.degraded, sample.lag_s, sample.inflight) == (True, False, 0.25, 2)
    own.fail_a_pass()
    assert replace(sample, ready=False, degraded=True) == own.views.sample(NOW, 0.25)


def test_a_router_without_a_store_is_its_whole_cluster() -> None:
    cluster = Own().views.cluster()
    assert cluster.lease.state == "local"
    assert [router.router_id for router in cluster.routers] == ["a:1"]
