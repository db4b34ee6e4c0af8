"""The effective configuration as values: one class per section of the fleet file, same field names.

Defaults, ranges and relations live in the schema table of `narwhal.config`; these classes only carry
what it has accepted, so nothing here has a default of its own. Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from narwhal.model.engine import EngineSpec


@dataclass(frozen=True, slots=True)
class SloSettings:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """`handoff_timeout_s` is effective (25.0 where the file has 0); queue_capacity 0 = no queue."""

    admission: str
    admission_margin: float
    max_connections: int
    request_timeout_s: float
    prefill_timeout_s: float
    graceful_timeout_s: float
    queue_capacity: int
    queue_timeout_s: float
    prefill_concurrency: int
    decode_concurrency: int
    handoff_timeout_s: float
    max_attempts: int
    retry_base_s: float
    retry_cap_s: float
    retry_budget: float
    retry_replenish: float
    max_request_bytes: int
    max_response_bytes: int


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`control_connections` is effective (max(4, 2 × engines) where the file has 0)."""

    connector: str
    dialect: str
    engine_api_key_env: str
    tokenize: bool
    tokenize_timeout_s: float
    chars_per_token: float
    control_connections: int
    connect_timeout_s: float
    pool_timeout_s: float
    health_timeout_s: float
    first_token_timeout_s: float
    decode_read_timeout_s: float


@dataclass(frozen=True, slots=True)
class ThresholdSettings:
    expand: float
    shrink: float
    cooldown_s: float
    dwell_s: float
    sustained_intervals: int
    panic_ratio: float
    flip_resident_guard: int


@dataclass(frozen=True, slots=True)
class ReactiveSettings:
    window_s: float
    step_s: float
    confirmations: int
    min_arrivals: int
    utilization: float
    demand_floor: float
    movement_margin: float
    evidence_span_s: float
    evidence_max_span_s: float
    evidence_min_arrivals: int
    demand_rise_tolerance: float
    decode_correction_min: float
    decode_correction_max: float
    decode_correction_alpha: float
    decode_correction_min_samples: int


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    monitor_interval_s: float
    monitor_failure_limit: int
    advisory: bool
    min_prefill: int
    min_decode: int
    flip_history: int
    thresholds: ThresholdSettings
    reactive: ReactiveSettings


@dataclass(frozen=True, slots=True)
class HealthSettings:
    window_s: float
    drift_band: float
    relative_band: float
    min_samples: int
    probation_windows: int
    evict_windows: int
    recovery_windows: int
    probation_penalty_s: float


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    eject_after: int
    readmit_every: int
    liveness_every: int
    liveness_misses: int
    engine_restart_policy: str
    failure_quarantine_s: float
    state_path: str
    resume: bool
    health: HealthSettings


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    path: str
    max_decode_fit_mape: float
    max_decode_cv_mape: float


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """One accepted fleet file. `contract` and `hardware` are the checked sections, None where absent.

    A contract is *complete* when every field but the image digest is set.
    `digest` is what routers compare: sha256 hex over the effective values less the per-host ones.
    """

    model: str
    engines: tuple[EngineSpec, ...]
    slo: SloSettings
    controller: ControllerSettings
    serving: ServingSettings
    engine: EngineSettings
    recovery: RecoverySettings
    profiles: ProfileSettings
    contract: Mapping[str, Any] | None
    contract_complete: bool
    hardware: Mapping[str, Any] | None
    digest: str
    section_digests: Mapping[str, str] = field(default_factory=dict)
    """By top-level section: which of them differ between two routers can be named."""


LONGEST_TTL_S = 86_400.0
"""A day: every watcher remembers the longest TTL that it ever saw, so no record may tell any number."""


@dataclass(frozen=True, slots=True)
class LeaseTimings:
    """T, R, M, P and o of cluster.md. `problems` of a set are the config package's to report."""

    ttl_s: float = 5.0
    renew_interval_s: float = 1.0
    safety_margin_s: float = 1.0
    standby_probe_interval_s: float = 0.25
    attempt_timeout_s: float = 0.8


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the shared store is: one (host, port), a Unix socket, or Sentinels and the service they know.

    `hosts` are the Sentinels when `service` is set; empty with a `socket_path`. Holds no password.
    """

    hosts: tuple[tuple[str, int], ...] = ()
    socket_path: str = ""
    service: str = ""
    db: int = 0
    username: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What differs per host: the command line over its environment twins (configuration.md section 3).

    Effective: values that the fleet file can also give are those that hold. `store` is None without a
    shared store; `failsafe` is empty where fail-safe mode is off. `router_id` and `advertise_url` when not
    given, and `control_url`, where this router takes orders, are "" until the ports are bound. `control_port`
    is None where operator routes share the listener. `control_key` is "" where none is set.
    """

    fleet_path: str
    host: str
    port: int
    log_level: str
    log_format: str
    state_path: str
    journal_path: str
    max_concurrent: int
    graceful_timeout_s: float
    resume: bool
    store: StoreAddress | None
    store_password: str = field(repr=False)
    cluster: str
    router_id: str
    advertise_url: str
    standby: bool
    standby_of: str
    timings: LeaseTimings
    standby_takeover_after: int
    standby_max_handoff_age_s: float
    failsafe: tuple[str, ...]
    control_key: str = field(repr=False)
    no_warden: bool
    redis_min_replicas: int | None = None
    """None: computed from the replicas that are seen."""
    control_host: str = ""
    control_port: int | None = None
    control_url: str = ""
