"""The router cluster as one router sees it: the values of `narwhal.cluster` v1 (http-api.md section 6)."""

from __future__ import annotations

from dataclasses import dataclass

from narwhal.model.control import StoreStatus


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The lease as last seen, or ours. `state`: held, released, vacant, none (nothing stored) or local
    (no store). `valid_for_s`: seconds that this router trusts it from now, None where it knows none."""

    state: str
    holder: str = ""
    router_id: str = ""
    url: str = ""
    epoch: int = 0
    seq: int = 0
    ttl_s: float | None = None
    valid_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """One router of the fleet as it told of itself. `seen_s`: seconds since, 0 for the answering one.
    `control_url`: where it takes orders."""

    router_id: str
    url: str
    role: str
    epoch: int
    mirror_age_s: float | None
    version: str
    ready_to_take: bool
    drift: tuple[str, ...]
    seen_s: float
    control_url: str = ""


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """One change of hands that this router saw. `kind`: acquired, released, fenced or expired;
    `at`: when it happened, Unix seconds: another router's by the store's clock."""

    kind: str
    epoch: int
    router_id: str
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Everything of the cluster document. `changes` are the newest last, bounded by the teller."""

    lease: LeaseStatus
    routers: tuple[RouterStatus, ...]
    changes: tuple[OwnershipChange, ...]
    store: StoreStatus
