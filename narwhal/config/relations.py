"""Rules between several values of the fleet file.

An order between two values is an error only when the file gives both; against a default, the default
gives way. What a value needs (a queue its timeout) must be given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from narwhal.config.schema import BY_PATH, fields_of


@dataclass(slots=True)
class Draft:
    """Values on their way to a FleetConfig, by path.

    `values` holds what was given and accepted, and the default of the rest. `spoiled` paths were given
    but are wrong: reported already, and no relation looks at them. `notes` says why a default gave way.
    `blocks` are the sections that are there, `references` the variables that URLs came from.
    """

    values: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    spoiled: set[str] = field(default_factory=set)
    notes: dict[str, str] = field(default_factory=dict)
    blocks: set[str] = field(default_factory=set)
    references: dict[str, str] = field(default_factory=dict)
    engines: int = 0

    def sound(self, *paths: str) -> bool:
        return not self.spoiled.intersection(paths)

    def give_way(self, path: str, value: Any, *, because_of: str) -> None:
        self.values[path] = BY_PATH[path].settled(value)
        self.notes[path] = because_of


@dataclass(frozen=True, slots=True)
class Order:
    """`low` ≤ `high`, or `low` < `high` when strict."""

    low: str
    high: str
    strict: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return self.low, self.high

    def holds(self, draft: Draft) -> bool:
        low, high = draft.values[self.low], draft.values[self.high]
        return bool(low < high if self.strict else low <= high)

    @property
    def words(self) -> str:
        return f"{self.low} must be {'<' if self.strict else '≤'} {self.high}"

    def sentence(self, draft: Draft) -> str:
        return f"{self.words} ({draft.values[self.high]:.15g}), got {draft.values[self.low]:.15g}"


_REACTIVE: Final = "controller.reactive."
ORDERS: Final = (
    Order("serving.prefill_timeout_s", "serving.request_timeout_s"),
    Order("engine.first_token_timeout_s", "serving.request_timeout_s"),
    Order("serving.retry_base_s", "serving.retry_cap_s"),
    Order("controller.thresholds.shrink", "controller.thresholds.expand", strict=True),
    Order(_REACTIVE + "evidence_span_s", _REACTIVE + "window_s"),
    Order(_REACTIVE + "evidence_span_s", _REACTIVE + "evidence_max_span_s"),
    Order(_REACTIVE + "evidence_max_span_s", _REACTIVE + "window_s"),
    Order(_REACTIVE + "decode_correction_min", _REACTIVE + "decode_correction_max"),
    Order("profiles.max_decode_fit_mape", _REACTIVE + "movement_margin"),
    Order("recovery.health.probation_windows", "recovery.health.evict_windows"),
)


def settle_orders(draft: Draft) -> list[str]:
    """Reports orders broken by given values, then lets defaults give way. Returns the problems."""
    problems = []
    usable = [order for order in ORDERS if draft.sound(*order.paths)]
    for order in usable:
        if draft.given.issuperset(order.paths) and not order.holds(draft):
            problems.append(order.sentence(draft))
            draft.spoiled.update(order.paths)
    usable = [order for order in usable if draft.sound(*order.paths)]
    for _ in ORDERS:
        for order in usable:
            if not order.holds(draft):
                _bend(order, draft)
    for order in usable:
        fault = BY_PATH[order.high].problem(draft.values[order.high]) if order.high in draft.notes else ""
        if fault:
            problems.append(f"{order.sentence(draft)}; {order.high} {fault}")
    return problems


def _bend(order: Order, draft: Draft) -> None:
    """Moves the default of the two. A strict order keeps the ratio of the two defaults."""
    low, high = draft.values[order.low], draft.values[order.high]
    ratio = BY_PATH[order.low].default / BY_PATH[order.high].default if order.strict else 1
    raised = order.low in draft.given or order.low in draft.notes
    if order.high in draft.given or not raised:
        draft.give_way(order.low, high * ratio, because_of=order.high)
    else:
        draft.give_way(order.high, low / ratio if order.strict else low, because_of=order.low)


_WINDOW: Final = "recovery.health.window_s"
_INTERVAL: Final = "controller.monitor_interval_s"
_SAMPLES: Final = "recovery.health.min_samples"


def settle_samples(draft: Draft) -> list[str]:
    """`min_samples` ≤ floor(window_s ÷ monitor_interval_s): what a window can hold at all."""
    if not draft.sound(_WINDOW, _INTERVAL, _SAMPLES):
        return []
    window, interval, samples = (draft.values[path] for path in (_WINDOW, _INTERVAL, _SAMPLES))
    room = math.floor(window / interval + 1e-9)
    if samples <= room:
        return []
    if _SAMPLES not in draft.given and room >= 1:
        draft.give_way(_SAMPLES, room, because_of=_WINDOW)
    elif _WINDOW not in draft.given:
        cause = _SAMPLES if _SAMPLES in draft.given else _INTERVAL
        draft.give_way(_WINDOW, samples * interval, because_of=cause)
    elif _INTERVAL not in draft.given:
        draft.give_way(_INTERVAL, window / samples, because_of=_SAMPLES)
    elif room < 1:
        return [f"{_WINDOW} must be ≥ {_INTERVAL} ({interval:.15g}), got {window:.15g}"]
    else:
        return [f"{_SAMPLES} must be ≤ floor({_WINDOW} ÷ {_INTERVAL}) ({room}), got {samples}"]
    return []


def check_minimums(draft: Draft) -> list[str]:
    """`min_prefill` + `min_decode` fit the fleet; a one-engine fleet has both at 1."""
    prefill, decode = "controller.min_prefill", "controller.min_decode"
    if not draft.engines or not draft.sound(prefill, decode):
        return []
    low, high = draft.values[prefill], draft.values[decode]
    if draft.engines == 1:
        if low == high == 1:
            return []
        return [f"{prefill} and {decode} must both be 1 in a fleet of one engine, got {low} and {high}"]
    if low + high <= draft.engines:
        return []
    return [f"{prefill} + {decode} must be ≤ the number of engines ({draft.engines}), got {low} + {high}"]


def pins_against_floors(draft: Draft) -> list[str]:
    """Warnings: pins may leave fewer engines for a leg than its floor asks for, or none at all."""
    words = []
    for leg in ("prefill", "decode"):
        rows = [f"engines[{index}]" for index in range(draft.engines)]
        able = [row for row in rows if draft.values[f"{row}.role"] == leg or not draft.values[f"{row}.pin"]]
        floor = f"controller.min_{leg}"
        if not able:
            words.append(f"pins leave no engine for {leg}: every request will be answered 503")
        elif len(able) < draft.values[floor]:
            count, least = len(able), draft.values[floor]
            words.append(
                f"pins leave {count} for {leg}, fewer than {floor} ({least}): that floor is never met"
            )
    return words


def check_queue(draft: Draft) -> list[str]:
    """A queue needs a positive timeout."""
    capacity, timeout = "serving.queue_capacity", "serving.queue_timeout_s"
    if draft.sound(capacity, timeout) and draft.values[capacity] > 0 and draft.values[timeout] <= 0:
        return [f"{timeout} must be > 0 with {capacity} {draft.values[capacity]}"]
    return []


def missing_for_complete_contract(draft: Draft) -> list[str]:
    """Names of the contract fields that are not set; the image digest may stay away."""
    return [
        name
        for name, spec in fields_of("engine_contract").items()
        if name != "image_digest" and not contract_value_set(draft.values.get(spec.path))
    ]


def contract_value_set(value: Any) -> bool:
    """ "" , 0 and null mean not set; false is a value."""
    return value is False or bool(value)


def check_whole_wave(draft: Draft) -> list[str]:
    """`whole_wave` needs a complete contract and health sweeps."""
    policy, sweeps = "recovery.engine_restart_policy", "recovery.liveness_every"
    if not draft.sound(policy) or draft.values[policy] != "whole_wave":
        return []
    problems = []
    if draft.sound(sweeps) and draft.values[sweeps] == 0:
        problems.append(f"{sweeps} must be > 0 with {policy} whole_wave, got 0")
    contract = [path for path in draft.spoiled if path.startswith("engine_contract")]
    if "engine_contract" not in draft.blocks:
        problems.append(f"engine_contract is required by {policy} whole_wave")
    elif not contract and (missing := missing_for_complete_contract(draft)):
        problems.append(f"engine_contract must be complete with {policy} whole_wave: {_unset(missing)}")
    return problems


def _unset(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not set"


def check_hardware(draft: Draft) -> list[str]:
    """`tensor_parallel` ≤ `accelerators_per_engine`."""
    parallel, devices = "hardware.tensor_parallel", "hardware.accelerators_per_engine"
    if "hardware" not in draft.blocks or not draft.sound(parallel, devices):
        return []
    if draft.values[parallel] <= draft.values[devices]:
        return []
    return [f"{parallel} must be ≤ {devices} ({draft.values[devices]}), got {draft.values[parallel]}"]


RELATIONS: Final[tuple[Callable[[Draft], list[str]], ...]] = (
    settle_orders,
    settle_samples,
    check_minimums,
    check_queue,
    check_whole_wave,
    check_hardware,
)
"""Each takes the draft, may let defaults give way, and returns problems."""
