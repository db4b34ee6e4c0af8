"""Where a router stands in the cluster, as every reader of memory sees it (cluster.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """States of the lease machine; `role` is what documents and people are shown."""

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

    @property
    def role(self) -> str:
        """`active`, `standby` or `fenced` (http-api.md section 3)."""
        if self in {Phase.OWNER, Phase.SUSPECT, Phase.DRAINING}:
            return "active"
        return "fenced" if self is Phase.FENCED else "standby"


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The lease as this router last saw it; `epoch` and `holder` are its own while it holds it.

    `holder` is `<router-id>:<16 hex of sha256(token)>`, "" when nobody holds. `valid_until` is on
    `Clock.now` (0.0 while not holding). `state` is the record's: held, released, vacant or "" (nothing
    stored or never seen). `released_at`: when this router first saw the present version released (None:
    it is not). `store_ok` is None before the first answer; `store_failures` counts unanswered calls.
    """

    phase: Phase = Phase.STARTING
    epoch: int = 0
    holder: str = ""
    owner_id: str = ""
    owner_url: str = ""
    state: str = ""
    seq: int = 0
    ttl_s: float = 0.0
    valid_until: float = 0.0
    released_at: float | None = None
    reason: str = ""
    store_ok: bool | None = None
    store_failures: int = 0
    store_latency_s: float = 0.0

    @property
    def role(self) -> str:
        return self.phase.role


@dataclass(frozen=True, slots=True)
class Remembered:
    """What outlives the process: the checkpoint's epoch floor and greatest TTL, and that it saw an owner."""

    epoch_floor: int = 0
    ttl_ms_max: int = 0
    saw_owner: bool = False
