"""One router's parts, wired: engines, request path, monitor, control, views, application."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from narwhal.api.actions import OperatorActions
from narwhal.api.app import build_app, build_control_app
from narwhal.api.inbound import BodyLimits
from narwhal.api.inference import DataFirst, DataViews, data_routes
from narwhal.api.operator import OperatorViews
from narwhal.clock import Clock
from narwhal.cluster.assembly import Owned
from narwhal.cluster.state import Identity
from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.engine.control import LeanControl
from narwhal.engine.dates import AnswerDates
from narwhal.engine.dialect import make_dialect
from narwhal.model.engine import EngineProfile
from narwhal.model.monitoring import STAGES, PoolView
from narwhal.model.settings import FleetConfig, ServeOptions
from narwhal.model.state_view import AdmissionView, ServingView
from narwhal.monitor.controller import ControllerStage
from narwhal.monitor.drains import DrainsStage
from narwhal.monitor.gate import MonitoredGate
from narwhal.monitor.handoff import HandoffStage
from narwhal.monitor.health import HealthStage
from narwhal.monitor.judge import Judge
from narwhal.monitor.lag import LoopLag
from narwhal.monitor.loop import MonitorLoop, PassRecord
from narwhal.monitor.model_card import ModelCard
from narwhal.monitor.rollover import RolloverStage
from narwhal.monitor.telemetry import TelemetryStage
from narwhal.monitor.views import Readings, RouterViews
from narwhal.policy.admission import Admission
from narwhal.policy.fleet import Fleet
from narwhal.policy.monitoring import Monitoring
from narwhal.policy.retry import RetryPolicy
from narwhal.policy.totals import Totals
from narwhal.ports import Checkpoint
from narwhal.runtime.control import ClusterControl, Control, ControlParts, LocalControl, first_failure
from narwhal.runtime.engines import warmed
from narwhal.runtime.host import boot_id
from narwhal.runtime.probing import Probing, ProbingParts
from narwhal.runtime.warden.supervisor import Supervisor
from narwhal.serving.attempt import Attempt
from narwhal.serving.control import ControlCheck
from narwhal.serving.doors import Doors
from narwhal.serving.handler import Handler
from narwhal.serving.ledger import Ledger
from narwhal.serving.leg import EngineAccess
from narwhal.serving.retries import Retries
from narwhal.serving.sizing import Sizer
from narwhal.serving.witness import Witness
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import JournalRecorder

DRAIN_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Setting:
    """What a router is made from. `api_key` is the engines' bearer ("" = none); `run` names this process."""

    options: ServeOptions
    config: FleetConfig
    profiles: Mapping[str, EngineProfile]
    api_key: str
    run: str
    checkpoint: Checkpoint
    recorder: JournalRecorder
    metrics: RouterMetrics
    clock: Clock
    supervisor: Supervisor


def _digest(contract: Mapping[str, Any] | None) -> str:
    """What routers compare of their engine contracts; "" without one."""
    if contract is None:
        return ""
    return hashlib.sha256(json.dumps(contract, sort_keys=True, default=str).encode()).hexdigest()


class Router:
    """Made on the loop that it serves. Raises SavedStateError for a checkpoint it must not load."""

    def __init__(self, setting: Setting) -> None:
        config, options, clock = setting.config, setting.options, setting.clock
        self._setting = setting
        self.fleet = Fleet(config, setting.profiles)
        self.totals = Totals(setting.run)
        setting.supervisor.follow(self.totals)
        self.monitoring = Monitoring(
            limit=config.controller.monitor_failure_limit,
            stages=STAGES,
        )
        self.control = self._made_control()
        self.lag = LoopLag(lambda: self.ledger.inflight > 0)
        self.client = LeanClient(
            config.engines,
            ClientSettings(
                config.serving.max_connections, config.serving.max_response_bytes, setting.api_key
            ),
            stamp=self.control.leg_stamp,
        )
        self.client.allow_for(self.lag.stood_still_s)
        dates = AnswerDates()
        self.client.date_by(clock.now, dates)
        self.probes = LeanControl(
            config.engines,
            connections=config.engine.control_connections,
            connect_timeout_s=config.engine.connect_timeout_s,
            api_key=setting.api_key,
            stamp=self.control.probe_stamp,
        )
        self.probes.date_by(clock.now, dates)
        self.judge = Judge(
            self.fleet,
            gate=self.control.gate,
            recorder=setting.recorder,
            metrics=setting.metrics,
            clock=clock,
        )
        self.admission = Admission(config.serving, max_concurrent=options.max_concurrent)
        self.ledger = Ledger(fleet=self.fleet, totals=self.totals, recorder=setting.recorder, clock=clock)
        self.probing = self._made_probing()
        self.maintenance = self.probing.maintenance(self.control.publisher)
        self.control.when_restoring(self._when_restoring)
        self.control.when_open(self.probing.when_open)
        self.control.when_ended(self._when_ended)
        gate = MonitoredGate(self.control.gate, self.monitoring, wave=self.fleet.upkeep.wave)
        self.check = ControlCheck(gate, clock)
        self.doors = Doors(self.admission, control=self.check, fleet=self.fleet, clock=clock)
        self.retries = Retries(RetryPolicy(config.serving), clock=clock, draw=random.random)
        self.card = ModelCard(
            config.model,
            control=self.probes,
            engines=lambda: self.fleet.available(clock.now()) or self.fleet.engines,
            timeout_s=config.engine.health_timeout_s,
        )
        self.views = RouterViews(self._readings(), config=config, clock=clock)
        self.monitor = self._made_monitor()
        self.app, self.control_app = self._made_apps()

    async def run(self) -> None:
        """Control and monitoring until cancelled. Raises what must end the process."""
        await first_failure(self.control.run(), self.monitor.run())

    async def drain(self, cut: asyncio.Event, *, within_s: float) -> int:
        """Waits until no request is in hand, `within_s` at most or until `cut`; how many were left."""
        clock = self._setting.clock
        until = clock.now() + within_s
        while self.ledger.inflight and not cut.is_set() and clock.now() < until:
            await clock.sleep(DRAIN_POLL_S)
        return self.ledger.inflight

    async def aclose(self) -> None:
        await self.control.aclose()
        await self.client.aclose()
        await self.probing.aclose()

    def _when_restoring(self) -> None:
        self.maintenance.abandon()
        self.probing.when_restoring()

    def _when_ended(self) -> None:
        """A router that owns no more asks nothing of engines: no probe, no check that an operator ordered."""
        self.maintenance.abandon()
        self.probing.when_ended()

    async def _engines_pass(self) -> bool:
        """A standby that suspects the owner: its engines answer it, and connections to them are open."""
        return await warmed(self.client, self.probes, fleet=self.fleet, settings=self._setting.config.engine)

    # --- wiring ----------------------------------------------------------------------------------

    def _made_control(self) -> Control:
        setting = self._setting
        identity = Identity(
            router_id=setting.options.router_id,
            run=setting.run,
            model=setting.config.model,
            engines=tuple(sorted(spec.iid for spec in setting.config.engines)),
            boot_id=boot_id(),
        )
        parts = ControlParts(
            options=setting.options,
            identity=identity,
            owned=Owned(self.fleet, self.totals),
            checkpoint=setting.checkpoint,
            recorder=setting.recorder,
            clock=setting.clock,
            config_digest=setting.config.digest,
            contract_digest=_digest(setting.config.contract),
            section_digests=setting.config.section_digests,
            tell_token=setting.supervisor.tell,
            degraded=lambda: self.monitoring.reason,
            failure_limit=setting.config.controller.monitor_failure_limit,
            probe=self._engines_pass,
        )
        store = setting.options.store
        return LocalControl(parts) if store is None else ClusterControl(parts, store)

    def _made_probing(self) -> Probing:
        parts = ProbingParts(
            self.probes,
            self.ledger.decodes.quiet_s,
            self.fleet,
            judge=self.judge,
            gate=self.control.gate,
            clock=self._setting.clock,
            stood_still_s=self.lag.stood_still_s,
        )
        return Probing(self._setting.config, parts)

    def _made_monitor(self) -> MonitorLoop:
        setting, control = self._setting, self.control
        pacing, interval_s = self.fleet.pacing, setting.config.controller.monitor_interval_s
        stages = (
            ControllerStage(self.fleet, self.judge),
            HealthStage(pacing, self.judge),
            DrainsStage(self.maintenance),
            RolloverStage(self.ledger.decodes, pacing, interval_s=interval_s),
            *self.probing.stages(everyone=lambda: control.probe_stamp() is not None),
            TelemetryStage(
                self.views.sample,
                metrics=setting.metrics,
                card=self.card,
                lag=self.lag,
            ),
            HandoffStage(control.publisher),
        )
        return MonitorLoop(
            stages,
            PassRecord(self.monitoring, setting.recorder, setting.metrics),
            gate=control.gate,
            clock=setting.clock,
            interval_s=interval_s,
        )

    def _made_handler(self) -> Handler:
        config, clock = self._setting.config, self._setting.clock
        dialect = make_dialect(config.engine.dialect, config.engine.connector)
        access = EngineAccess(self.client, dialect, clock, config.engine)
        witness = Witness(self.judge)
        attempt = Attempt(access, config.serving, fleet=self.fleet, control=self.check, witness=witness)
        self.ledger.freed = attempt.freed
        return Handler(
            self.ledger,
            doors=self.doors,
            sizer=Sizer(access, self.fleet, witness=witness),
            attempt=attempt,
            retries=self.retries,
        )

    def _made_apps(self) -> tuple[ASGIApp, ASGIApp]:
        """Of the main and of the control listener; the second is served only where there is one."""
        operator, actions, options = self._operator_views(), self._actions(), self._setting.options
        apart, data = options.control_port is not None, self._data_views()
        app = build_app(
            data_routes(data),
            operator,
            actions=None if apart else actions,
            control_key=options.control_key,
        )
        control = build_control_app(operator, actions, control_key=options.control_key)
        return DataFirst(data, app), control

    def _data_views(self) -> DataViews:
        setting, clock = self._setting, self._setting.clock
        return DataViews(
            handler=self._made_handler(),
            limits=BodyLimits(setting.config.model, setting.config.serving.max_request_bytes),
            arrival=lambda: (clock.now(), clock.wall()),
            card=self.card,
            created=int(clock.wall()),
        )

    def _operator_views(self) -> OperatorViews:
        setting, views = self._setting, self.views
        return OperatorViews(
            readiness=views.readiness,
            health=views.health,
            state=views.state,
            cluster=views.cluster,
            handoff=self.control.handoff,
            metrics=setting.metrics.render,
            heard=self.control.heard,
        )

    def _actions(self) -> OperatorActions:
        views = self.views
        return OperatorActions(
            yield_lease=self.control.yield_lease,
            pledge=self.control.pledge,
            drain=self.maintenance.drain,
            readmit=self.maintenance.readmit,
            lifecycle=lambda: views.lifecycle(self.control.handoff()),
            cluster=views.cluster,
        )

    # --- what the views read ---------------------------------------------------------------------

    def _readings(self) -> Readings:
        return Readings(
            control=self.control.view,
            fleet=self.fleet,
            monitoring=self.monitoring,
            counters=self.totals.total,
            admission=self._admission_view,
            serving=self._serving_view,
            http_pools=self._pools,
        )

    def _admission_view(self) -> AdmissionView:
        return AdmissionView(
            inflight=self.ledger.inflight,
            limit=self.admission.limit,
            queued=self.doors.room.queued,
            queue_capacity=self.admission.capacity,
            queue_high_water=self.doors.room.high_water,
            mode=self.admission.mode,
            margin=self.admission.margin,
            engine_auth="engine-credential" if self._setting.api_key else "boundary",
        )

    def _serving_view(self) -> ServingView:
        return ServingView(self.ledger.attempts, self.ledger.retries, self.retries.credits)

    def _pools(self) -> Mapping[str, PoolView]:
        return {"data": self.client.pool(), "control": self.probes.pool()}
