"""What a monitor pass reports: stages, their failures, the gauges it samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from narwhal.model.request import Counters

STAGES = (
    "controller",
    "health",
    "drains",
    "rollover",
    "readmission",
    "liveness",
    "telemetry",
    "handoff",
)
"""The stages of one pass in their fixed order (failures.md section 1)."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """How one stage of one pass ended. `failure` is the exception's class name, "" for a clean end.

    `at` is Unix seconds at the end, `detail` the exception's text (for the log, never for a client).
    """

    stage: str
    at: float
    duration_s: float
    failure: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StageTally:
    """Failures of one stage in this process. `last_at`: Unix seconds, None before the first failure."""

    failures: int = 0
    consecutive: int = 0
    last_class: str = ""
    last_at: float | None = None


@dataclass(frozen=True, slots=True)
class MonitoringView:
    """The state of monitoring: `consecutive` failed passes in a row, `failures` of stages in all.

    `reason` is "" while no pass has failed in a row up to the limit, else
    `monitoring degraded: <stage> <ExceptionClass>` of the streak's first failure.
    """

    degraded: bool = False
    reason: str = ""
    consecutive: int = 0
    failures: int = 0
    stages: Mapping[str, StageTally] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool of connections to engines: `limit` seats, `busy` now used, `waiting` callers
    without a seat."""

    limit: int
    busy: int
    waiting: int


@dataclass(frozen=True, slots=True)
class GaugeSample:
    """What the `telemetry` stage read in one pass; the metrics registry shows the last one.

    Mappings are by engine ID (`resident_*`: requests; `kv_held`, `kv_orphaned`: KV handoffs; `windows_*`:
    drift windows) or by role (`eligible`: engines that may take new work, `shortfall`: engines missing to
    `controller.min_*`). `lag_s` is the longest event-loop delay since the pass before, `credits` what is left
    for retries. `pools` are the connection pools to engines by name, `totals` the counters of all router
    runs, `drift` in how many things a standby differs from the owner; `lease_valid_s` is None where this
    router trusts no lease.
    """

    role: str
    epoch: int
    ready: bool
    resident_prefill: Mapping[str, int]
    resident_decode: Mapping[str, int]
    kv_held: Mapping[str, int]
    kv_orphaned: Mapping[str, int]
    eligible: Mapping[str, int]
    shortfall: Mapping[str, int]
    inflight: int
    limit: int
    queued: int
    credits: float
    lag_s: float
    degraded: bool
    store_failures: int
    mirror_age_s: float | None
    drift: int
    pools: Mapping[str, PoolView]
    totals: Counters
    lease_valid_s: float | None
    windows_scored: Mapping[str, int]
    windows_undersampled: Mapping[str, int]
