"""Frozen views with a value of its own in every field, for tests of the documents."""

from __future__ import annotations

from dataclasses import replace

from narwhal.model.cluster_view import ClusterStatus, LeaseStatus, OwnershipChange, RouterStatus
from narwhal.model.control import (
    ControlStatus,
    Health,
    HealthStatus,
    OwnerRef,
    Readiness,
    RouterRole,
    RouterState,
    StoreStatus,
)
from narwhal.model.decoding import DriftHealth, RoleLoad
from narwhal.model.engine import Role
from narwhal.model.handover import LifecycleView
from narwhal.model.monitoring import MonitoringView, PoolView, StageTally
from narwhal.model.pair_view import EdgeView, HeldKv
from narwhal.model.placement import Resident
from narwhal.model.request import Counters
from narwhal.model.role_control import DecisionWord, RoleControlView, RoleDecision
from narwhal.model.standing import HoldKind, HoldView, StandingView
from narwhal.model.state_view import AdmissionView, HandoffView, ServingView, StateView
from tests.support.settings import controller_settings, fleet_config

OWNER = OwnerRef("a:1", "http://a:1")
STORE = StoreStatus(mode="standalone", latency_ms=0.4, failures=2)

READY = Readiness(
    ready=True,
    control_ready=True,
    reason="",
    epoch=7,
    holder="a:1:00ff",
    role=RouterRole.ACTIVE,
    owner=OWNER,
)

STANDING_BY = Readiness(
    ready=False,
    control_ready=False,
    reason="standby",
    epoch=7,
    holder="a:1:00ff",
    role=RouterRole.STANDBY,
    owner=OWNER,
    ready_to_take=True,
    drift=("config digest differs from the owner's",),
)

HEALTHY = Health(HealthStatus.OK, instances=4, available_instances=3)

OWNING = ControlStatus(
    RouterState.OWNER, epoch=7, holder="a:1:00ff", may_admit=True, owner=OWNER, blocked="", store=STORE
)

MOVED = RoleDecision(
    DecisionWord.MOVE,
    "floor",
    "0 eligible prefill engines, the floor is 1",
    1700000001.0,
    {"eligible_prefill": 0, "min_prefill": 1},
    "p1",
    Role.PREFILL,
)

STATE = StateView(
    counters=Counters(9, 8, 7, 0, 5, 4, 3, 2, 31),
    monitoring=MonitoringView(
        degraded=True,
        reason="monitoring degraded: handoff OSError",
        consecutive=5,
        failures=6,
        stages={
            "controller": StageTally(),
            "health": StageTally(),
            "drains": StageTally(),
            "rollover": StageTally(),
            "readmission": StageTally(),
            "liveness": StageTally(),
            "telemetry": StageTally(),
            "handoff": StageTally(6, 5, "OSError", 123.5),
        },
    ),
    control=OWNING,
    admission=AdmissionView(
        inflight=2,
        limit=512,
        queued=1,
        queue_capacity=8,
        queue_high_water=3,
        mode="open",
        margin=0.1,
        engine_auth="boundary",
    ),
    serving=ServingView(attempts=11, retries=2, credits=8.5),
    http_pools={"data": PoolView(limit=512, busy=2, waiting=0)},
    roles={"p1": Role.PREFILL, "p0": Role.PREFILL, "d0": Role.DECODE},
    resident={"p0": Resident(1, 0), "p1": Resident(), "d0": Resident(0, 1)},
    pinned=("p1", "d0"),
    standing=StandingView(
        failures={"d0": {"stream": 2}},
        verifying=("d0", "p1"),
        ejected=("p2",),
        holds={
            "d0": HoldView(HoldKind.INFERENCE, "3 stream failures in a row", None),
            "d1": HoldView(HoldKind.QUARANTINE, "a decode leg failed", 2.5),
        },
    ),
    draining=("p1",),
    edges=(EdgeView("p0", "d0", 3, True, 1.5, "3 failed decodes in a row"),),
    kv={"p0": HeldKv(2, 300, 1), "d0": HeldKv(0, 0, 0)},
    thresholds=controller_settings().thresholds,
    slo=fleet_config().slo,
    load=RoleLoad(prefill=0.25, decode=0.5),
    probation=("p1", "d0"),
    health={"d0": DriftHealth(4, 1, last_scored_s_ago=2.5, prefill_paused=True, prefill_pauses=3)},
    role_control=RoleControlView(
        last=RoleDecision(DecisionWord.KEEP, "floor", "every role has its floor", 1700000002.0),
        flips=(MOVED,),
        refused=(replace(MOVED, word=DecisionWord.REFUSE, iid="", role=None),),
    ),
)

CLUSTER = ClusterStatus(
    lease=LeaseStatus("held", "a:1:00ff", "a:1", "http://a:1", 7, 12, ttl_s=5.0, valid_for_s=3.5),
    routers=(
        RouterStatus("a:1", "http://a:1", "active", 7, None, "0.1.0", False, (), 0.0),
        RouterStatus("b:1", "http://b:1", "standby", 7, 0.02, "0.1.0", True, ("old mirror",), 1.5),
    ),
    changes=(OwnershipChange("acquired", 7, "a:1", 1700000000.5),),
    store=STORE,
)

HANDOFF = HandoffView(
    document={
        "schema": "narwhal.handoff",
        "schema_version": 1,
        "at": 1700000000.5,
        "run": "r1",
        "model": "tiny",
        "epoch": 7,
        "holder": "a:1:00ff",
        "engines": ["d0", "p0"],
        "roles": {"d0": "decode", "p0": "prefill"},
        "counters": {"served": 3, "offered": 3},
        "lifecycle": {
            "wave": None,
            "backend_outage": False,
            "engine_restart_policy": "individual",
            "records": [],
            "process_starts": {},
        },
    },
    mirrored=False,
)

LIFECYCLE = LifecycleView(
    control=OWNING,
    lifecycle={"engine_restart_policy": "individual", "process_starts": {"d0": 12.5}},
    records={
        "p0": {
            "engine": "p0",
            "state": "drained",
            "deadline_at": 1700000300.0,
            "wave_id": None,
            "old_process_start": 12.5,
            "new_process_start": None,
            "checks": [],
            "error": "",
            "ready_to_stop": True,
        }
    },
    accepts_new=("d0",),
    resident={"d0": Resident(0, 1), "p0": Resident()},
    wall=1700000100.0,
    carried={"x0": {"state": "drained", "ejected": False, "held": False}},
)
