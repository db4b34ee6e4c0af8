"""What a router says of its own control over the fleet, and the answers of /ready and /health."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RouterState(StrEnum):
    """The states of one router (cluster.md section 5). Without a shared store: `owner` until it drains."""

    STARTING = "starting"
    STANDBY = "standby"
    CANDIDATE = "candidate"
    ACQUIRING = "acquiring"
    RESTORING = "restoring"
    OWNER = "owner"
    SUSPECT = "suspect"
    FENCED = "fenced"
    DRAINING = "draining"
    RELEASED = "released"
    STOPPED = "stopped"


class RouterRole(StrEnum):
    """The three words every document uses for a router (http-api.md section 3)."""

    ACTIVE = "active"
    STANDBY = "standby"
    FENCED = "fenced"


_ROLES = {
    RouterState.OWNER: RouterRole.ACTIVE,
    RouterState.SUSPECT: RouterRole.ACTIVE,
    RouterState.DRAINING: RouterRole.ACTIVE,
    RouterState.FENCED: RouterRole.FENCED,
}


def role_of(state: RouterState) -> RouterRole:
    """Owner, suspect and draining are active until released; fenced is fenced; the rest is standby."""
    return _ROLES.get(state, RouterRole.STANDBY)


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """The router that holds the lease as last seen. `url` is where clients reach it, `control_url` where it
    takes orders, "" for the same."""

    router_id: str
    url: str
    control_url: str = ""

    @property
    def orders_url(self) -> str:
        return self.control_url or self.url


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The shared store as this router sees it. `mode`: none, standalone or sentinel.

    `latency_ms` is that of the last call, None when it got no answer or there was none; `failures`
    counts calls without an answer since the start.
    """

    mode: str = "none"
    latency_ms: float | None = None
    failures: int = 0
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class ControlStatus:
    """Leadership at one instant, read from memory.

    `epoch` and `holder` are ours while we own, else those of the lease as last seen (0 and "" without a
    store). `may_admit` compares the clock with the lease's local deadline; an owner past it is already
    FENCED here, whether or not a timer has said so yet. `blocked` says why the state
    cannot be published ("" = it can). `mirror_age_s` is None while there is no mirror.
    """

    state: RouterState
    epoch: int
    holder: str
    may_admit: bool
    owner: OwnerRef | None = None
    fenced_why: str = ""
    shutting_down: bool = False
    blocked: str = ""
    store: StoreStatus = StoreStatus()
    ready_to_take: bool = False
    drift: tuple[str, ...] = ()
    mirror_age_s: float | None = None

    @property
    def role(self) -> RouterRole:
        return role_of(self.state)


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of /ready (http-api.md section 3). `reason` is "" exactly when `ready`.

    `ready_to_take` and `drift` are told by standbys only.
    """

    ready: bool
    control_ready: bool
    reason: str
    epoch: int
    holder: str
    role: RouterRole
    owner: OwnerRef | None
    ready_to_take: bool = False
    drift: tuple[str, ...] = ()


class HealthStatus(StrEnum):
    OK = "ok"
    STANDBY = "standby"
    FENCED = "fenced"
    MAINTENANCE = "maintenance"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of /health: engines configured and engines that may take a new request."""

    status: HealthStatus
    instances: int
    available_instances: int
