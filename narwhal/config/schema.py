"""The schema table of the fleet file (`narwhal.fleet` v1): every field, its default, rule and meaning.

The one source of the checks (check.py), of `narwhal config show`, of docs/configuration.md and of the
tests over them. Rules between several fields stand in relations.py.
"""

from __future__ import annotations

from typing import Any, Final

from narwhal.config.rules import (
    ANYTHING,
    AT_LEAST_ONE,
    NOT_BLANK,
    NOT_NEGATIVE,
    PLAIN,
    POSITIVE,
    REQUIRED,
    SHARE,
    UNSET,
    Field,
    Kind,
    OneOf,
    Rule,
    Shaped,
    Span,
)

SCHEMA: Final = "narwhal.fleet"
SCHEMA_VERSION: Final = 1

OPTIONAL_BLOCKS: Final = ("engines[].shared_device", "engine_contract", "hardware")
"""Sections whose fields have no effect, and need no values, unless the section is there."""

# Parts that come after this version, by the name that the warning line uses.
PREDICTIVE: Final = "predictive admission"
ROLES: Final = "role control"


def _whole(path: str, default: Any, *, doc: str, rule: Rule = AT_LEAST_ONE, **more: Any) -> Field:
    return Field(path=path, kind=Kind.INTEGER, default=default, doc=doc, rule=rule, **more)


def _number(path: str, default: Any, *, doc: str, rule: Rule = POSITIVE, **more: Any) -> Field:
    return Field(path=path, kind=Kind.NUMBER, default=default, doc=doc, rule=rule, **more)


def _flag(path: str, default: Any, *, doc: str, **more: Any) -> Field:
    return Field(path=path, kind=Kind.BOOLEAN, default=default, doc=doc, **more)


def _text(path: str, default: Any, *, doc: str, rule: Rule = ANYTHING, **more: Any) -> Field:
    return Field(path=path, kind=Kind.TEXT, default=default, doc=doc, rule=rule, **more)


_TOP = (
    _text("schema", REQUIRED, doc="Names this document.", rule=OneOf((SCHEMA,))),
    _whole("schema_version", REQUIRED, doc="Version of this document.", rule=OneOf((SCHEMA_VERSION,))),
    _text("model", REQUIRED, doc="The served model, as clients and engines name it.", rule=NOT_BLANK),
)

_ENGINES = (
    _text("engines[].iid", REQUIRED, doc="Engine ID, unique in the fleet.", rule=NOT_BLANK),
    _text(
        "engines[].url", REQUIRED, doc="Base URL of the engine's HTTP server, or `${NAME}`.", rule=NOT_BLANK
    ),
    _text("engines[].role", "decode", doc="The leg it is offered first.", rule=OneOf(("prefill", "decode"))),
    _flag(
        "engines[].pin",
        False,
        doc="The engine keeps its role, on resume too, and takes no leg of the other one.",
    ),
    _text(
        "engines[].attestation_url",
        "",
        doc="Full URL of the engine's attestation document, or `${NAME}`; needed with a contract.",
        at_rest="",
    ),
    _text(
        "engines[].shared_device.group",
        REQUIRED,
        doc="Name of the 2 to 8 engines that share one GPU.",
        rule=NOT_BLANK,
    ),
    _text(
        "engines[].shared_device.gpu_uuid",
        REQUIRED,
        doc="UUID of that GPU, equal in the group.",
        rule=NOT_BLANK,
    ),
    _number(
        "engines[].shared_device.device_allowance",
        REQUIRED,
        doc="Share of the GPU's memory that the group may use together, equal in the group.",
        rule=SHARE,
    ),
    _number(
        "engines[].shared_device.gpu_memory_utilization",
        REQUIRED,
        doc="This engine's share of the GPU's memory; the group's sum stays within the allowance.",
        rule=SHARE,
    ),
)

_SLO = (
    _number("slo.ttft_s", REQUIRED, doc="Target for the time to first token, seconds."),
    _number("slo.tpot_s", REQUIRED, doc="Target for the time per output token, seconds."),
)

_CONTROLLER = (
    _number("controller.monitor_interval_s", 1.0, doc="Seconds between monitor passes."),
    _whole(
        "controller.monitor_failure_limit",
        5,
        doc="Failed passes in a row after which the router is degraded.",
    ),
    _flag("controller.advisory", False, doc="Record proposed role moves, make none."),
    _whole("controller.min_prefill", 1, doc="Engines that stay in the prefill role."),
    _whole("controller.min_decode", 1, doc="Engines that stay in the decode role."),
    _whole("controller.flip_history", 1000, doc="Role moves remembered."),
)

_THRESHOLDS = (
    _number(
        "controller.thresholds.expand", 1.0, doc="Load at which a role wants another engine.", later=ROLES
    ),
    _number(
        "controller.thresholds.shrink",
        0.5,
        doc="Load at which a role can give one up.",
        rule=NOT_NEGATIVE,
        later=ROLES,
    ),
    _number(
        "controller.thresholds.cooldown_s",
        10.0,
        doc="Seconds between prefill to decode moves.",
        rule=NOT_NEGATIVE,
        later=ROLES,
    ),
    _number(
        "controller.thresholds.dwell_s",
        0.0,
        doc="Seconds an engine stays in a role at least.",
        rule=NOT_NEGATIVE,
        later=ROLES,
    ),
    _whole("controller.thresholds.sustained_intervals", 3, doc="Passes that a load must last.", later=ROLES),
    _number(
        "controller.thresholds.panic_ratio",
        0.0,
        doc="Load that moves an engine at once; 0 = off.",
        rule=Span(1, or_zero=True),
        later=ROLES,
    ),
    _whole(
        "controller.thresholds.flip_resident_guard",
        0,
        doc="A decode engine with more resident requests is not moved; 0 = off.",
        rule=NOT_NEGATIVE,
        later=ROLES,
    ),
)

_REACTIVE = (
    _number("controller.reactive.window_s", 120.0, doc="Seconds of demand looked at.", later=ROLES),
    _number("controller.reactive.step_s", 5.0, doc="Seconds between scorings of the split.", later=ROLES),
    _whole(
        "controller.reactive.confirmations", 2, doc="Equal decisions in a row before a move.", later=ROLES
    ),
    _whole(
        "controller.reactive.min_arrivals", 10, doc="Arrivals in the window before any move.", later=ROLES
    ),
    _number(
        "controller.reactive.utilization",
        0.8,
        doc="Share of capacity that is planned for.",
        rule=SHARE,
        later=ROLES,
    ),
    _number("controller.reactive.demand_floor", 0.5, doc="Least share of demand assumed.", later=ROLES),
    _number(
        "controller.reactive.movement_margin",
        0.05,
        doc="Improvement of the score that a move needs.",
        rule=Span(0, 1, high_open=True),
        later=ROLES,
    ),
    _number(
        "controller.reactive.evidence_span_s",
        60.0,
        doc="Seconds of arrivals before consolidation.",
        later=ROLES,
    ),
    _number(
        "controller.reactive.evidence_max_span_s",
        120.0,
        doc="Longest span that evidence may take.",
        later=ROLES,
    ),
    _whole("controller.reactive.evidence_min_arrivals", 10, doc="Arrivals that make evidence.", later=ROLES),
    _number(
        "controller.reactive.demand_rise_tolerance",
        0.25,
        doc="Rise of demand that still allows consolidation.",
        rule=NOT_NEGATIVE,
        later=ROLES,
    ),
    _number(
        "controller.reactive.decode_correction_min", 0.5, doc="Least live decode correction.", later=ROLES
    ),
    _number(
        "controller.reactive.decode_correction_max", 2.0, doc="Greatest live decode correction.", later=ROLES
    ),
    _number(
        "controller.reactive.decode_correction_alpha",
        0.2,
        doc="Weight of the newest sample in it.",
        rule=SHARE,
        later=ROLES,
    ),
    _whole(
        "controller.reactive.decode_correction_min_samples", 8, doc="Samples before it counts.", later=ROLES
    ),
)

_SERVING = (
    _text(
        "serving.admission",
        "predictive",
        doc="`predictive` refuses what cannot meet the TTFT target, `open` takes everything.",
        rule=OneOf(("predictive", "open")),
        later=PREDICTIVE,
        at_rest="open",
    ),
    _number(
        "serving.admission_margin",
        0.0,
        doc="Seconds of the TTFT target kept in reserve.",
        rule=NOT_NEGATIVE,
        later=PREDICTIVE,
        at_rest=0.0,
    ),
    _whole(
        "serving.max_connections", 512, doc="In-flight limit, and size of the one data pool to all engines."
    ),
    _number("serving.request_timeout_s", 600.0, doc="Seconds a request may take, end to end."),
    _number("serving.prefill_timeout_s", 120.0, doc="Seconds the prefill leg may take."),
    _number(
        "serving.graceful_timeout_s",
        30.0,
        doc="Seconds that open streams get at a clean shutdown.",
        rule=NOT_NEGATIVE,
    ),
    _whole(
        "serving.queue_capacity",
        0,
        doc="Requests that may wait for a place; 0 = no queue.",
        rule=NOT_NEGATIVE,
    ),
    _number(
        "serving.queue_timeout_s",
        0.0,
        doc="Seconds a request may wait there; a queue needs it.",
        rule=NOT_NEGATIVE,
    ),
    _whole(
        "serving.prefill_concurrency",
        0,
        doc="Prefill legs at one engine at a time, the next waits; 0 = no limit.",
        rule=NOT_NEGATIVE,
    ),
    _whole(
        "serving.decode_concurrency",
        0,
        doc="Decode legs at one engine at a time, the next waits; 0 = no limit.",
        rule=NOT_NEGATIVE,
    ),
    _number(
        "serving.handoff_timeout_s",
        0.0,
        doc="Seconds a KV handoff stays good; 0 = 25 s (vLLM's 30 s lease less a sixth).",
        rule=NOT_NEGATIVE,
    ),
    _whole(
        "serving.max_attempts",
        1,
        doc="Prefill and decode attempts per request.",
        rule=Span(1, 3),
    ),
    _number("serving.retry_base_s", 0.1, doc="First backoff, seconds."),
    _number("serving.retry_cap_s", 1.0, doc="Longest backoff, seconds."),
    _number("serving.retry_budget", 10.0, doc="Retry credits at most.", rule=NOT_NEGATIVE),
    _number(
        "serving.retry_replenish",
        0.1,
        doc="Credits that each success gives back.",
        rule=Span(0, 1),
    ),
    _whole("serving.max_request_bytes", 4194304, doc="Longest request body, bytes."),
    _whole("serving.max_response_bytes", 16777216, doc="Longest assembled response or single event, bytes."),
)

_ENGINE = (
    _text("engine.connector", "nixl", doc="How KV moves between engines: a registered name.", rule=NOT_BLANK),
    _text("engine.dialect", "vllm", doc="The engines' HTTP dialect: a registered name.", rule=NOT_BLANK),
    _text("engine.engine_api_key_env", "", doc="Variable that holds the engines' API key; none when empty."),
    _flag("engine.tokenize", True, doc="Ask an engine for the length of text prompts."),
    _number("engine.tokenize_timeout_s", 2.0, doc="Seconds that this may take."),
    _number("engine.chars_per_token", 3.8, doc="Characters per token where the length is estimated."),
    _whole(
        "engine.control_connections",
        0,
        doc="Connections for health and identity; 0 = the greater of 4 and twice the engines.",
        rule=NOT_NEGATIVE,
    ),
    _number("engine.connect_timeout_s", 10.0, doc="Seconds to connect to an engine."),
    _number("engine.pool_timeout_s", 5.0, doc="Seconds to wait for a seat in the data pool."),
    _number("engine.health_timeout_s", 5.0, doc="Seconds a health check may take."),
    _number("engine.first_token_timeout_s", 2.5, doc="Seconds from decode dispatch to the first token."),
    _number(
        "engine.decode_read_timeout_s",
        60.0,
        doc="Longest time without a whole event in a stream, seconds; 0 = off. Comments are no events.",
        rule=NOT_NEGATIVE,
    ),
)

_RECOVERY = (
    _whole("recovery.eject_after", 3, doc="Failures in a row, per engine and class, that act."),
    _whole("recovery.readmit_every", 10, doc="Passes between readmission probes."),
    _whole(
        "recovery.liveness_every",
        10,
        doc="Passes between health sweeps; 0 = off.",
        rule=NOT_NEGATIVE,
    ),
    _whole("recovery.liveness_misses", 2, doc="Missed sweeps in a row that eject."),
    _text(
        "recovery.engine_restart_policy",
        "individual",
        doc="Whether engines restart one by one or all together.",
        rule=OneOf(("individual", "whole_wave")),
        at_rest="individual",
    ),
    _number(
        "recovery.failure_quarantine_s",
        0.0,
        doc="Seconds that an engine whose leg failed takes no new request; 0 = off.",
        rule=NOT_NEGATIVE,
    ),
    _text(
        "recovery.state_path",
        "runs/state.json",
        doc="Checkpoint file; its directory is made if missing and must be writable.",
        rule=NOT_BLANK,
        per_host=True,
    ),
    _flag("recovery.resume", False, doc="Start from the saved state instead of the configured split."),
)

_HEALTH = (
    _number("recovery.health.window_s", 30.0, doc="Seconds of samples compared.", rule=AT_LEAST_ONE),
    _number(
        "recovery.health.drift_band",
        2.0,
        doc="Multiple of an engine's healthy score above which it drifts.",
        rule=Span(1, low_open=True),
    ),
    _number(
        "recovery.health.relative_band",
        1.5,
        doc="Multiple of its peers' scores above which it drifts in a fleet-wide surge too; 0 = always.",
        rule=NOT_NEGATIVE,
    ),
    _whole("recovery.health.min_samples", 3, doc="Samples that a window needs."),
    _whole("recovery.health.probation_windows", 3, doc="Drifting windows that put it on probation."),
    _whole("recovery.health.evict_windows", 5, doc="Drifting windows that eject it."),
    _whole("recovery.health.recovery_windows", 3, doc="Good windows that end probation."),
    _number(
        "recovery.health.probation_penalty_s",
        1.5,
        doc="Seconds added to its placement cost meanwhile.",
        rule=NOT_NEGATIVE,
    ),
)

_PROFILES = (
    _text("profiles.path", "runs/profiles.json", doc="The profile store.", rule=NOT_BLANK, per_host=True),
    _number("profiles.max_decode_fit_mape", 0.05, doc="Greatest fit error that narwhal-check accepts."),
    _number("profiles.max_decode_cv_mape", 0.13, doc="The same for the cross-validated error."),
)


def _contract(name: str, kind: Kind, *, doc: str, default: Any = UNSET, rule: Rule = ANYTHING) -> Field:
    path = f"engine_contract.{name}"
    return Field(path=path, kind=kind, default=default, doc=doc, rule=rule)


_CONTRACT = (
    _contract(
        "vllm_version",
        Kind.TEXT,
        doc="Version that every engine must report.",
        default=REQUIRED,
        rule=PLAIN,
    ),
    _contract(
        "image_digest",
        Kind.TEXT,
        doc="Container image; may stay empty in a complete contract.",
        rule=Shaped(r"|sha256:[0-9a-f]{64}", '"" or "sha256:" and 64 hex digits'),
    ),
    _contract("nixl_version", Kind.TEXT, doc="Version of NIXL."),
    _contract(
        "nixl_connector_version", Kind.INTEGER, doc="Protocol version of the connector.", rule=NOT_NEGATIVE
    ),
    _contract("model_architecture", Kind.TEXT, doc="Architecture class of the model."),
    _contract("model_dtype", Kind.TEXT, doc="Data type of the weights."),
    _contract("kv_heads", Kind.INTEGER, doc="KV heads of a layer.", rule=NOT_NEGATIVE),
    _contract("head_size", Kind.INTEGER, doc="Size of a head.", rule=NOT_NEGATIVE),
    _contract("hidden_layers", Kind.INTEGER, doc="Hidden layers of the model.", rule=NOT_NEGATIVE),
    _contract("attention_backend", Kind.TEXT, doc="Attention backend."),
    _contract("kv_cache_dtype", Kind.TEXT, doc="Data type of the KV cache."),
    _contract("cross_layers_blocks", Kind.BOOLEAN, doc="Whether KV blocks span layers."),
    _contract("hybrid_kv_cache_manager", Kind.BOOLEAN, doc="Whether the hybrid KV cache manager is on."),
    _contract("connector", Kind.TEXT, doc="KV connector class.", default="NixlConnector"),
    _contract("kv_role", Kind.TEXT, doc="KV role of every engine."),
    _contract("transfer_mode", Kind.TEXT, doc="How blocks move, as descriptors name it."),
    _contract("speculative_config", Kind.TEXT, doc="Speculative decoding, as text; `none` by custom."),
    _contract("enforce_handshake_compat", Kind.BOOLEAN, doc="Engines refuse an unlike peer.", default=True),
)

_HARDWARE = (
    _text("hardware.accelerator", REQUIRED, doc="Accelerator model.", rule=NOT_BLANK),
    _whole("hardware.accelerators_per_engine", REQUIRED, doc="Accelerators of one engine."),
    _whole("hardware.tensor_parallel", REQUIRED, doc="Tensor-parallel size, at most the accelerators."),
)

FIELDS: Final[tuple[Field, ...]] = (
    *_TOP,
    *_ENGINES,
    *_SLO,
    *_CONTROLLER,
    *_THRESHOLDS,
    *_REACTIVE,
    *_SERVING,
    *_ENGINE,
    *_RECOVERY,
    *_HEALTH,
    *_PROFILES,
    *_CONTRACT,
    *_HARDWARE,
)
"""Every field in the order of the documentation."""

BY_PATH: Final = {field.path: field for field in FIELDS}

SECTIONS: Final = tuple(dict.fromkeys(field.section for field in FIELDS))
"""Section paths in order; "" is the top level, `engines[]` one engine."""


def fields_of(section: str) -> dict[str, Field]:
    """Name → field of one section, without its subsections."""
    return {field.name: field for field in FIELDS if field.section == section}


def subsections_of(section: str) -> tuple[str, ...]:
    """Names of the sections directly inside `section` (the engine list appears as `engines[]`)."""
    prefix = f"{section}." if section else ""
    inner = (path[len(prefix) :].partition(".")[0] for path in SECTIONS if path.startswith(prefix))
    return tuple(dict.fromkeys(name for name in inner if name))
