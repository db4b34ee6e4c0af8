"""Rules between several values: errors when both are given, else the default gives way."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.config.relations import ORDERS, Order
from narwhal.config.rules import Kind
from narwhal.config.schema import BY_PATH
from tests.support.fleets import COMPLETE_CONTRACT, contracted, fleet_document, put
from tests.unit.config.test_fields import DEVICE, examined, problems_of

ALL_ORDERS = pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.words)


def pair(order: Order) -> tuple[Any, Any]:
    """A lower and a greater value that the rules of both fields accept."""
    if order.high.endswith("movement_margin"):
        return 0.2, 0.8
    return (2, 4) if BY_PATH[order.low].kind is Kind.INTEGER else (1.25, 2.5)


@ALL_ORDERS
def test_an_order_between_given_values_is_enforced(order: Order) -> None:
    low, high = pair(order)
    document = fleet_document()
    put(document, order.low, high)
    put(document, order.high, low)
    sentence = f"{order.words} ({low}), got {high}"
    assert problems_of(document) == [sentence]


@ALL_ORDERS
def test_an_order_that_holds_passes(order: Order) -> None:
    low, high = pair(order)
    document = fleet_document()
    put(document, order.low, low)
    put(document, order.high, high)
    values = examined(document).values
    assert (values[order.low], values[order.high]) == (low, high)


@ALL_ORDERS
def test_equal_values_pass_unless_the_order_is_strict(order: Order) -> None:
    _, value = pair(order)
    document = fleet_document()
    put(document, order.low, value)
    put(document, order.high, value)
    if order.strict:
        assert problems_of(document) == [f"{order.words} ({value}), got {value}"]
    else:
        examined(document)


@ALL_ORDERS
def test_the_default_of_the_lower_gives_way(order: Order) -> None:
    default = BY_PATH[order.low].default
    given: Any = max(1, default - 1) if isinstance(default, int) else default / 2
    document = fleet_document()
    put(document, order.high, given)
    draft = examined(document)
    assert order.holds(draft)
    assert draft.values[order.high] == given
    assert draft.notes[order.low] == order.high


@ALL_ORDERS
def test_the_default_of_the_greater_gives_way(order: Order) -> None:
    default = BY_PATH[order.high].default
    given: Any = default + 1 if isinstance(default, int) else default * 2
    document = fleet_document()
    put(document, order.low, given)
    draft = examined(document)
    assert order.holds(draft)
    assert draft.values[order.low] == given
    assert draft.notes[order.high] == order.low


def test_a_short_request_timeout_bounds_every_shorter_limit() -> None:
    values = examined(fleet_document(serving__request_timeout_s=2)).values
    assert values["serving.prefill_timeout_s"] == 2.0
    assert values["engine.first_token_timeout_s"] == 2.0


def test_giving_way_goes_through_a_chain() -> None:
    path = "controller.reactive."
    draft = examined(fleet_document(controller={"reactive": {"evidence_span_s": 300}}))
    assert [draft.values[path + name] for name in ("evidence_max_span_s", "window_s")] == [300.0, 300.0]
    draft = examined(fleet_document(controller={"reactive": {"window_s": 30}}))
    assert [draft.values[path + name] for name in ("evidence_span_s", "evidence_max_span_s")] == [30.0, 30.0]


def test_a_strict_order_keeps_the_ratio_of_its_defaults() -> None:
    draft = examined(fleet_document(controller={"thresholds": {"expand": 0.4}}))
    assert draft.values["controller.thresholds.shrink"] == pytest.approx(0.2)


def test_a_default_cannot_give_way_beyond_its_own_rule() -> None:
    problems = problems_of(fleet_document(profiles={"max_decode_fit_mape": 1.5}))
    assert len(problems) == 1
    assert "controller.reactive.movement_margin must be ≥ 0 and < 1" in problems[0]


def test_no_movement_margin_leaves_no_fit_error() -> None:
    draft = examined(fleet_document(controller={"reactive": {"movement_margin": 0.0}}))
    assert draft.values["profiles.max_decode_fit_mape"] == 0.0


def test_a_wrong_value_takes_part_in_no_relation() -> None:
    document = fleet_document(serving={"request_timeout_s": "60", "prefill_timeout_s": 900})
    assert problems_of(document) == ['serving.request_timeout_s must be a number, got "60"']


# --- health samples ----------------------------------------------------------------------------------


def health(**values: Any) -> dict[str, Any]:
    return {"health": values}


def test_samples_fit_the_window() -> None:
    document = fleet_document(
        recovery=health(window_s=5, min_samples=3), controller={"monitor_interval_s": 2.0}
    )
    assert problems_of(document) == [
        "recovery.health.min_samples must be ≤ "
        "floor(recovery.health.window_s ÷ controller.monitor_interval_s) (2), got 3"
    ]


def test_a_window_holds_at_least_one_pass() -> None:
    document = fleet_document(recovery=health(window_s=5), controller={"monitor_interval_s": 6})
    assert problems_of(document) == [
        "recovery.health.window_s must be ≥ controller.monitor_interval_s (6), got 5"
    ]


def test_the_defaults_of_samples_window_and_interval_give_way() -> None:
    values = examined(fleet_document(recovery=health(window_s=2))).values
    assert values["recovery.health.min_samples"] == 2
    values = examined(fleet_document(recovery=health(min_samples=60))).values
    assert values["recovery.health.window_s"] == 60.0
    values = examined(fleet_document(recovery=health(min_samples=60, window_s=30))).values
    assert values["controller.monitor_interval_s"] == 0.5
    values = examined(fleet_document(controller={"monitor_interval_s": 50})).values
    assert values["recovery.health.window_s"] == 150.0


def test_rounding_takes_no_sample_away() -> None:
    document = fleet_document(
        recovery=health(window_s=3, min_samples=10), controller={"monitor_interval_s": 0.3}
    )
    assert examined(document).values["recovery.health.min_samples"] == 10


# --- minimums, queue, whole wave, hardware ------------------------------------------------------------


def test_minimums_fit_the_fleet() -> None:
    document = fleet_document(controller={"min_prefill": 2, "min_decode": 2})
    sentence = "controller.min_prefill + controller.min_decode must be ≤ the number of engines (3), got 2 + 2"
    assert problems_of(document) == [sentence]
    examined(fleet_document(controller={"min_prefill": 2}))


def test_a_fleet_of_one_engine_has_both_minimums_at_one() -> None:
    document = fleet_document()
    document["engines"] = document["engines"][:1]
    examined(document)
    document["controller"] = {"min_decode": 2}
    names = "controller.min_prefill and controller.min_decode"
    assert problems_of(document) == [f"{names} must both be 1 in a fleet of one engine, got 1 and 2"]


def test_a_queue_needs_its_timeout() -> None:
    assert problems_of(fleet_document(serving={"queue_capacity": 5})) == [
        "serving.queue_timeout_s must be > 0 with serving.queue_capacity 5"
    ]
    examined(fleet_document(serving={"queue_capacity": 5, "queue_timeout_s": 1}))
    examined(fleet_document(serving={"queue_timeout_s": 1}))


def test_whole_wave_needs_a_contract_and_sweeps() -> None:
    document = fleet_document(recovery={"engine_restart_policy": "whole_wave", "liveness_every": 0})
    assert problems_of(document) == [
        "recovery.liveness_every must be > 0 with recovery.engine_restart_policy whole_wave, got 0",
        "engine_contract is required by recovery.engine_restart_policy whole_wave",
    ]


@pytest.mark.parametrize("name", [name for name in COMPLETE_CONTRACT if name != "vllm_version"])
@pytest.mark.parametrize("unset", ["", 0, None, "absent"])
def test_whole_wave_needs_every_contract_field(name: str, unset: Any) -> None:
    document = contracted(recovery__engine_restart_policy="whole_wave")
    examined(document)
    if unset == "absent":
        del document["engine_contract"][name]
    elif unset is None or BY_PATH[f"engine_contract.{name}"].kind.holds(unset):
        document["engine_contract"][name] = unset
    else:
        return
    assert problems_of(document) == [
        f"engine_contract must be complete with recovery.engine_restart_policy whole_wave: {name} is not set"
    ]


def test_the_image_digest_is_checked_but_may_stay_away() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    examined(contracted(recovery__engine_restart_policy="whole_wave", engine_contract__image_digest=digest))


def test_tensor_parallel_fits_the_accelerators() -> None:
    hardware = {"accelerator": "H100", "accelerators_per_engine": 4, "tensor_parallel": 8}
    assert problems_of(fleet_document(hardware=hardware)) == [
        "hardware.tensor_parallel must be ≤ hardware.accelerators_per_engine (4), got 8"
    ]


# --- engines ------------------------------------------------------------------------------------------


def test_engines_must_be_a_nonempty_list() -> None:
    for value, words in (([], "[]"), ({}, "an object"), ("e0", '"e0"'), (3, "3")):
        document = fleet_document()
        document["engines"] = value
        assert problems_of(document) == [f"engines must be a nonempty list, got {words}"]


def test_engine_ids_and_urls_are_unique() -> None:
    document = fleet_document()
    document["engines"][1]["iid"] = "e0"
    document["engines"][2]["url"] = "HTTP://127.0.0.1:8100/"
    assert problems_of(document) == [
        'engines[1].iid is the same as engines[0].iid: "e0"',
        'engines[2].url is the same as engines[0].url: "HTTP://127.0.0.1:8100"',
    ]


def test_a_contract_needs_attestation_urls() -> None:
    document = contracted()
    del document["engines"][1]["attestation_url"]
    assert problems_of(document) == ["engines[1].attestation_url is required with an engine_contract"]


def shared(*devices: dict[str, Any]) -> dict[str, Any]:
    document = fleet_document()
    document["engines"] = [
        {"iid": f"e{n}", "url": f"http://h:{8100 + n}", "shared_device": {**DEVICE, **device}}
        for n, device in enumerate(devices)
    ]
    return document


def test_engines_of_one_device_agree_and_fit() -> None:
    examined(shared({}, {}))
    assert problems_of(shared({}, {"gpu_uuid": "GPU-2"})) == [
        'shared_device group "g" must have one gpu_uuid, got "GPU-1", "GPU-2"'
    ]
    assert problems_of(shared({}, {"device_allowance": 1.0})) == [
        'shared_device group "g" must have one device_allowance, got 0.9, 1.0'
    ]
    assert problems_of(shared({}, {"gpu_memory_utilization": 0.6})) == [
        'shared_device group "g" must sum gpu_memory_utilization to ≤ 0.9 (its allowance), got 1'
    ]


def test_a_device_is_shared_by_two_to_eight_engines() -> None:
    small = {"gpu_memory_utilization": 0.1}
    for count in (1, 9):
        assert problems_of(shared(*[small] * count)) == [
            f'shared_device group "g" must have 2 to 8 engines, got {count}'
        ]
    examined(shared(*[small] * 8))


def test_utilizations_may_sum_to_the_allowance_exactly() -> None:
    third = {"gpu_memory_utilization": 0.3}
    examined(shared(third, third, third))
