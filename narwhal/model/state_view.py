"""The values behind `narwhal.state` and `narwhal.handoff`: what a router shows of itself at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from narwhal.model.control import ControlStatus
from narwhal.model.decoding import DriftHealth, RoleLoad
from narwhal.model.engine import Role
from narwhal.model.monitoring import MonitoringView, PoolView
from narwhal.model.pair_view import EdgeView, HeldKv
from narwhal.model.placement import Resident
from narwhal.model.request import Counters
from narwhal.model.role_control import RoleControlView
from narwhal.model.settings import SloSettings, ThresholdSettings
from narwhal.model.standing import StandingView


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """`inflight`: requests from arrival to the end of the response, the `queued` ones too.

    `queue_high_water`: the most that ever waited at once. `mode`: the one that is in force, open or
    predictive. `engine_auth`: boundary (no bearer) or engine-credential.
    """

    inflight: int
    limit: int
    queued: int
    queue_capacity: int
    queue_high_water: int
    mode: str
    margin: float
    engine_auth: str


@dataclass(frozen=True, slots=True)
class ServingView:
    """`attempts`: prefill+decode attempts begun since the start, `retries`: those that were not a request's
    first. `credits`: what is left for further retries."""

    attempts: int
    retries: int
    credits: float


@dataclass(frozen=True, slots=True)
class StateView:
    """Everything live of the state document. Mappings are by engine ID, `http_pools` by pool name."""

    counters: Counters
    monitoring: MonitoringView
    control: ControlStatus
    admission: AdmissionView
    serving: ServingView
    http_pools: Mapping[str, PoolView]
    roles: Mapping[str, Role]
    resident: Mapping[str, Resident]
    pinned: tuple[str, ...]
    standing: StandingView
    draining: tuple[str, ...]
    edges: tuple[EdgeView, ...]
    kv: Mapping[str, HeldKv]
    thresholds: ThresholdSettings
    slo: SloSettings
    load: RoleLoad
    probation: tuple[str, ...]
    health: Mapping[str, DriftHealth]
    role_control: RoleControlView


@dataclass(frozen=True, slots=True)
class HandoffView:
    """The handoff document as decoded JSON: this owner's own, or a standby's mirrored copy.

    `mirror_age_s`: seconds since the mirror's last complete read, None for an own document.
    """

    document: Mapping[str, Any]
    mirrored: bool
    mirror_age_s: float | None = None
