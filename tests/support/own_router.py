"""The parts behind the views of one router without a store, all real, for tests of views and documents."""

from __future__ import annotations

from collections.abc import Mapping

from narwhal.cluster.local import LocalGate, LocalView
from narwhal.model.control import OwnerRef
from narwhal.model.engine import EngineProfile, EngineSpec, Role
from narwhal.model.monitoring import STAGES, PoolView, StageReport
from narwhal.model.settings import ControllerSettings
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
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_s = NOW

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now_s - NOW

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a view never waits")


class Own:
    """One router without a store, every part real. With `controller`: these settings instead of the usual."""

    def __init__(
        self,
        *engines: EngineSpec,
        controller: ControllerSettings | None = None,
        profiles: Mapping[str, EngineProfile] | None = None,
    ) -> None:
        controller = controller or controller_settings(min_decode=3)
        self.config = fleet_config(*(engines or ENGINES), controller=controller)
        self.clock = Still()
        self.gate = LocalGate()
        self.fleet = Fleet(self.config, profiles or {})
        self.totals = Totals("run-1")
        self.monitoring = Monitoring(limit=1, stages=STAGES)
        readings = Readings(
            control=LocalView(self.gate, me=OwnerRef("a:1", "http://a:1"), version="0"),
            fleet=self.fleet,
            monitoring=self.monitoring,
            counters=self.totals.total,
            admission=lambda: ADMISSION,
            serving=lambda: ServingView(attempts=3, retries=1, credits=9.0),
            http_pools=lambda: {"data": POOL},
        )
        self.views = RouterViews(readings, config=self.config, clock=self.clock)

    def fail_a_pass(self) -> None:
        self.monitoring.stage_ended(StageReport("handoff", 1.0, 0.0, failure="OSError"))
        self.monitoring.pass_ended()
