"""Accepted settings as values, for tests that need a fleet but no fleet file: the documented defaults."""

from __future__ import annotations

from typing import Any

from narwhal.model.engine import EngineSpec
from narwhal.model.handoff import HandoffDocument
from narwhal.model.settings import (
    ControllerSettings,
    EngineSettings,
    FleetConfig,
    HealthSettings,
    ProfileSettings,
    ReactiveSettings,
    RecoverySettings,
    ServingSettings,
    SloSettings,
    ThresholdSettings,
)

MODEL = "tiny"


def serving_settings(**changes: Any) -> ServingSettings:
    values: dict[str, Any] = {
        "admission": "open",
        "admission_margin": 0.0,
        "max_connections": 512,
        "request_timeout_s": 600.0,
        "prefill_timeout_s": 120.0,
        "graceful_timeout_s": 30.0,
        "queue_capacity": 0,
        "queue_timeout_s": 0.0,
        "prefill_concurrency": 0,
        "decode_concurrency": 0,
        "handoff_timeout_s": 25.0,
        "max_attempts": 1,
        "retry_base_s": 0.1,
        "retry_cap_s": 1.0,
        "retry_budget": 10.0,
        "retry_replenish": 0.1,
        "max_request_bytes": 4194304,
        "max_response_bytes": 16777216,
    }
    return ServingSettings(**{**values, **changes})


def engine_settings(**changes: Any) -> EngineSettings:
    values: dict[str, Any] = {
        "connector": "nixl",
        "dialect": "vllm",
        "engine_api_key_env": "",
        "tokenize": True,
        "tokenize_timeout_s": 2.0,
        "chars_per_token": 3.8,
        "control_connections": 8,
        "connect_timeout_s": 10.0,
        "pool_timeout_s": 5.0,
        "health_timeout_s": 5.0,
        "first_token_timeout_s": 2.5,
        "decode_read_timeout_s": 60.0,
    }
    return EngineSettings(**{**values, **changes})


def controller_settings(**changes: Any) -> ControllerSettings:
    values: dict[str, Any] = {
        "monitor_interval_s": 1.0,
        "monitor_failure_limit": 5,
        "advisory": False,
        "min_prefill": 1,
        "min_decode": 1,
        "flip_history": 1000,
        "thresholds": ThresholdSettings(
            expand=1.0,
            shrink=0.5,
            cooldown_s=10.0,
            dwell_s=0.0,
            sustained_intervals=3,
            panic_ratio=0.0,
            flip_resident_guard=0,
        ),
        "reactive": ReactiveSettings(
            window_s=120.0,
            step_s=5.0,
            confirmations=2,
            min_arrivals=10,
            utilization=0.8,
            demand_floor=0.5,
            movement_margin=0.05,
            evidence_span_s=60.0,
            evidence_max_span_s=120.0,
            evidence_min_arrivals=10,
            demand_rise_tolerance=0.25,
            decode_correction_min=0.5,
            decode_correction_max=2.0,
            decode_correction_alpha=0.2,
            decode_correction_min_samples=8,
        ),
    }
    return ControllerSettings(**{**values, **changes})


def recovery_settings(**changes: Any) -> RecoverySettings:
    values: dict[str, Any] = {
        "eject_after": 3,
        "readmit_every": 10,
        "liveness_every": 10,
        "liveness_misses": 2,
        "engine_restart_policy": "individual",
        "failure_quarantine_s": 0.0,
        "state_path": "runs/state.json",
        "resume": False,
        "health": HealthSettings(
            window_s=30.0,
            drift_band=2.0,
            relative_band=1.5,
            min_samples=3,
            probation_windows=3,
            evict_windows=5,
            recovery_windows=3,
            probation_penalty_s=1.5,
        ),
    }
    return RecoverySettings(**{**values, **changes})


def fleet_config(*engines: EngineSpec, **changes: Any) -> FleetConfig:
    """`changes` replace whole sections, for example `serving=serving_settings(max_connections=2)`."""
    values: dict[str, Any] = {
        "model": MODEL,
        "engines": engines,
        "slo": SloSettings(ttft_s=1.0, tpot_s=0.05),
        "controller": controller_settings(),
        "serving": serving_settings(),
        "engine": engine_settings(),
        "recovery": recovery_settings(),
        "profiles": ProfileSettings(
            path="runs/profiles.json", max_decode_fit_mape=0.05, max_decode_cv_mape=0.13
        ),
        "contract": None,
        "contract_complete": False,
        "hardware": None,
        "digest": "0" * 64,
    }
    return FleetConfig(**{**values, **changes})


def handoff_document(**roles: str) -> HandoffDocument:
    """A document of epoch 1 in which the engines have these roles."""
    return HandoffDocument(
        at=1_800_000_000.0,
        run="run-before",
        model=MODEL,
        epoch=1,
        holder="router-a:0123456789abcdef",
        engines=tuple(sorted(roles)),
        roles=roles,
    )
