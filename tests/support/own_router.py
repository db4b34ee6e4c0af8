"""The parts behind the views of one router without a store, all real, for tests of views and documents."""

from __future__ import annotations

from narwhal.cluster.local import LocalGate, LocalView
from narwhal.model.control import OwnerRef
from narwhal.model.engine import EngineSpec, Role
from narwhal.model.monitoring import PoolView, StageReport
from narwhal.model.state_view import AdmissionView, ServingView
from narwhal.monitor.views import Readings, RouterViews
from narwhal.policy.fleet import Fleet
from narwhal.policy.monitoring import Monitoring
from narwhal.policy.totals import Totals
from tests.support.settings import controller_settings, fleet_config

ENGINES = (
    EngineSpec("p0", "http://p0", Role.PREFILL),
    EngineSpec("d0", "http://d0", Role.DECODE),
    EngineSpec("d1", "http://d1", Role.DECODE, pin=True),
)
ADMISSION = AdmissionView(
    inflight=2,
    limit=512,
    queued=0,
    queue_capacity=8,
    queue_high_water=1,
    mode="open",
    margin=0.0,
    engine_auth="boundary",
)
POOL = PoolView(limit=512, busy=2, waiting=0)


NOW = 100.0


class Still:
    """A clock that stands at one instant."""

    def now(self) -> float:
        return NOW

    def wall(self) -> float:
        return 1_800_000_000.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a view never waits")


class Own:
    """One router without a store, every part real."""

    def __init__(self, *engines: EngineSpec) -> None:
        controller = controller_settings(min_decode=3)
        self.config = fleet_config(*(engines or ENGINES), controller=controller)
        self.gate = LocalGate()
        self.fleet = Fleet(self.config, {})
        self.totals = Totals("run-1")
        self.monitoring = Monitoring(limit=1, stages=["readmission", "liveness", "telemetry", "handoff"])
        readings = Readings(
            control=LocalView(self.gate, me=OwnerRef("a:1", "http://a:1"), version="0"),
            fleet=self.fleet,
            monitoring=self.monitoring,
            counters=self.totals.total,
            admission=lambda: ADMISSION,
            serving=lambda: ServingView(attempts=3, retries=1, credits=9.0),
            http_pools=lambda: {"data": POOL},
        )
        self.views = RouterViews(readings, config=self.config, clock=Still())

    def fail_a_pass(self) -> None:
        self.monitoring.stage_ended(StageReport("handoff", 1.0, 0.0, failure="OSError"))
        self.monitoring.pass_ended()
