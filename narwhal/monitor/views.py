"""What this router shows of itself: frozen values read from the machines at one instant, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from narwhal.clock import Clock
from narwhal.model.cluster_view import ClusterStatus
from narwhal.model.control import Health, Readiness
from narwhal.model.engine import Leg, Role
from narwhal.model.handover import LifecycleView
from narwhal.model.maintenance import WaveView
from narwhal.model.monitoring import GaugeSample, PoolView
from narwhal.model.request import Counters
from narwhal.model.role_control import RoleControlView, RoleDecision
from narwhal.model.settings import FleetConfig
from narwhal.model.state_view import AdmissionView, HandoffView, ServingView, StateView
from narwhal.policy.absent import first_of, read_absent
from narwhal.policy.fleet import Fleet
from narwhal.policy.monitoring import Monitoring
from narwhal.policy.readiness import ReadinessFacts, judge, judge_health
from narwhal.policy.wave import Wave
from narwhal.ports import ControlView


@dataclass(frozen=True, slots=True)
class Readings:
    """Where the views read. Every callable reads memory only.

    `counters` are the totals of all router runs known here; `http_pools` maps pool name to its seats.
    """

    control: ControlView
    fleet: Fleet
    monitoring: Monitoring
    counters: Callable[[], Counters]
    admission: Callable[[], AdmissionView]
    serving: Callable[[], ServingView]
    http_pools: Callable[[], Mapping[str, PoolView]]


class RouterViews:
    """Answers for /ready, /health, the documents and the gauges. Each call reads the clock once."""

    __slots__ = ("_clock", "_config", "_readings")

    def __init__(self, readings: Readings, *, config: FleetConfig, clock: Clock) -> None:
        self._readings = readings
        self._config = config
        self._clock = clock

    def readiness(self) -> Readiness:
        return judge(self._facts(self._clock.now()))

    def health(self) -> Health:
        now = self._clock.now()
        available = len(self._readings.fleet.available(now))
        return judge_health(self._facts(now), instances=len(self._config.engines), available=available)

    def state(self) -> StateView:
        now = self._clock.now()
        readings = self._readings
        admission = readings.admission()
        counters = readings.counters()
        return StateView(
            # A router's own view of what was offered adds what is still in flight here.
            counters=replace(counters, offered=counters.offered + admission.inflight),
            monitoring=readings.monitoring.view(),
            control=readings.control.status(now),
            admission=admission,
            serving=readings.serving(),
            http_pools=readings.http_pools(),
            roles=readings.fleet.roles(),
            resident=readings.fleet.resident(),
            pinned=readings.fleet.pinned(),
            standing=readings.fleet.standing(now),
            draining=tuple(sorted(readings.fleet.upkeep.drains.out())),
            edges=readings.fleet.edges(now),
            kv=readings.fleet.kv(now),
            thresholds=self._config.controller.thresholds,
            slo=self._config.slo,
            load=readings.fleet.pacing.load(self._eligible(now)),
            probation=readings.fleet.pacing.probation,
            health=readings.fleet.pacing.health(now),
            role_control=self._role_control(now),
        )

    def cluster(self) -> ClusterStatus:
        return self._readings.control.cluster(self._clock.now())

    def lifecycle(self, handoff: HandoffView | None) -> LifecycleView:
        """`handoff`: the own document or the mirrored one, None while there is neither."""
        now, fleet = self._clock.now(), self._readings.fleet
        lifecycle = handoff.document.get("lifecycle", {}) if handoff else {}
        own = handoff is not None and not handoff.mirrored
        return LifecycleView(
            control=self._readings.control.status(now),
            lifecycle=lifecycle,
            records=fleet.upkeep.rows() if own else _by_engine(lifecycle.get("records")),
            accepts_new=fleet.available(now) if own else (),
            resident=fleet.resident(),
            wall=self._clock.wall(),
            ejections=fleet.standings.ejections.view() if own else {},
            wave=fleet.upkeep.view() if own else _told_wave(lifecycle.get("wave")),
            awaited=fleet.identification.awaited() if own else {},
            carried=self._carried(handoff),
        )

    def sample(self, now: float, lag_s: float) -> GaugeSample:
        """The gauges of the `telemetry` stage."""
        readings = self._readings
        control = readings.control.status(now)
        admission = readings.admission()
        resident = readings.fleet.resident()
        eligible = self._eligible(now)
        drift = readings.fleet.pacing.health(now)
        kv = readings.fleet.kv(now)
        controller = self._config.controller
        floors = {Role.PREFILL: controller.min_prefill, Role.DECODE: controller.min_decode}
        return GaugeSample(
            role=control.role.value,
            epoch=control.epoch,
            ready=judge(self._facts(now)).ready,
            resident_prefill={iid: legs.prefill for iid, legs in resident.items()},
            resident_decode={iid: legs.decode for iid, legs in resident.items()},
            kv_held={iid: held.handoffs for iid, held in kv.items()},
            kv_orphaned={iid: held.orphaned for iid, held in kv.items()},
            eligible={role.value: len(eligible[role]) for role in Role},
            shortfall={role.value: max(0, floors[role] - len(eligible[role])) for role in Role},
            inflight=admission.inflight,
            limit=admission.limit,
            queued=admission.queued,
            credits=readings.serving().credits,
            lag_s=lag_s,
            degraded=readings.monitoring.degraded,
            store_failures=control.store.failures,
            mirror_age_s=control.mirror_age_s,
            drift=len(control.drift),
            pools=readings.http_pools(),
            totals=readings.counters(),
            lease_valid_s=readings.control.lease_valid_s(now),
            windows_scored={iid: one.scored for iid, one in drift.items()},
            windows_undersampled={iid: one.undersampled for iid, one in drift.items()},
        )

    def _carried(self, handoff: HandoffView | None) -> dict[str, dict[str, Any]]:
        """By engine that this router's fleet file does not have."""
        ours = frozenset(self._readings.fleet.engines)
        found = read_absent(handoff.document, ours=ours, now=0.0) if handoff else {}
        return {iid: absent.view(0.0) for iid, absent in first_of(found).items()}

    def _eligible(self, now: float) -> Mapping[Role, Sequence[str]]:
        """IDs of the engines of each role that may take new requests, sorted."""
        fleet = self._readings.fleet
        roles, available = fleet.roles(), fleet.available(now)
        return {role: [iid for iid in available if roles[iid] is role] for role in Role}

    def _role_control(self, now: float) -> RoleControlView:
        control, ahead_s = self._readings.fleet.split.role_control, self._clock.wall() - now
        return RoleControlView(
            None if control.last is None else _shifted(control.last, ahead_s),
            tuple(_shifted(flip, ahead_s) for flip in control.flips),
            tuple(_shifted(refusal, ahead_s) for refusal in control.refused),
        )

    def _facts(self, now: float) -> ReadinessFacts:
        readings = self._readings
        return ReadinessFacts(
            control=readings.control.status(now),
            monitoring=readings.monitoring.reason,
            serves_prefill=readings.fleet.can_serve(Leg.PREFILL, now),
            serves_decode=readings.fleet.can_serve(Leg.DECODE, now),
            awaiting_identity=readings.fleet.identification.awaiting,
            wave=readings.fleet.upkeep.wave.reason,
        )


def _by_engine(records: Any) -> dict[str, Mapping[str, Any]]:
    """The records of a mirrored document; what cannot be read is left out."""
    rows = records if isinstance(records, list | tuple) else ()
    return {str(row.get("engine")): row for row in rows if isinstance(row, Mapping)}


def _told_wave(told: Any) -> WaveView:
    """The wave of a mirrored document; what cannot be read of it is left out."""
    row = told if isinstance(told, Mapping) else {}
    wave_id = row.get("id")
    wave = Wave()
    wave.restore(told)
    return WaveView(
        wave_id if isinstance(wave_id, str) else None,
        active=isinstance(wave_id, str),
        readiness_withdrawn=told is not None,
        ready_to_stop=row.get("ready_to_stop") is True,
        reason=wave.reason,
    )


def _shifted(decision: RoleDecision, by_s: float) -> RoleDecision:
    """With its time on another clock that is so far ahead."""
    return replace(decision, at=decision.at + by_s)
