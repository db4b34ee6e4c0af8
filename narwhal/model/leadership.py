"""What the lease keeper shows to the rest of the router, and what a router remembers from before."""

from __future__ import annotations

from dataclasses import dataclass

from narwhal.model.control import OwnerRef, RouterState


@dataclass(frozen=True, slots=True)
class Release:
    """A lease that was given back. `at`: Unix seconds by the store's clock, 0 where nobody knows."""

    epoch: int
    router_id: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class LeaseSight:
    """The lease as last seen by this router, or its own. One value, swapped whole between threads.

    `record` is held, released, vacant, or none (nothing stored or never seen). `epoch`, `holder` and
    `owner` are the record's. `released_at` (on `Clock.now`): when the present version was first seen
    released, None while it is not. `claim_epoch`: the epoch that was released by a claim, at last
    `claim_age_s` ago, 0 where the record tells of none. `floor` and `ttl_ms_max` are what a checkpoint
    must keep.
    """

    state: RouterState = RouterState.STARTING
    record: str = "none"
    epoch: int = 0
    holder: str = ""
    owner: OwnerRef | None = None
    seq: int = 0
    ttl_s: float | None = None
    released_at: float | None = None
    acquired_at: float = 0.0
    """Of a held record that is another's: Unix seconds by the store's clock, 0 where nobody knows."""
    release: Release | None = None
    """The last one that the record tells of: of itself, or the one that it was taken after."""
    claim_epoch: int = 0
    claim_age_s: float = 0.0
    floor: int = 0
    ttl_ms_max: int = 0
    store_reachable: bool = False
    store_failures: int = 0
    store_latency_s: float | None = None
    damaged: str = ""
    """Which key holds what no router wrote, so that nobody here can acquire: "" for none."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What outlives the process: the checkpoint's epoch floor and greatest TTL, and that it saw an owner."""

    epoch_floor: int = 0
    ttl_ms_max: int = 0
    saw_owner: bool = False
