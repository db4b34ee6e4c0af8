"""A penalty orders candidates and excludes none (failures.md section 3, control.md section 2)."""

from __future__ import annotations

import math

import pytest

from narwhal.model.engine import EngineProfile
from narwhal.policy.cost import NEUTRAL, NEUTRAL_TPOT, EngineLoad
from narwhal.policy.placement import pick_decode, pick_prefill

TTFT_S = 1.0


def profiled(iid: str) -> EngineLoad:
    """A millisecond a prompt token; a target of 10,000 KV tokens."""
    row = EngineProfile(iid, 0.0, 0.001, 0.0, tpot_slope=5e-6, tpot_intercept=0.0)
    return EngineLoad(iid, row, tpot_s=0.05)


def neutral(iid: str) -> EngineLoad:
    return EngineLoad(iid, NEUTRAL, tpot_s=NEUTRAL_TPOT)


def prefill(*loads: EngineLoad, tokens: int = 100) -> tuple[str, float, bool]:
    load, cost, violates_slo = pick_prefill(loads, tokens, ttft_s=TTFT_S)
    return load.iid, pytest.approx(cost), violates_slo


def decode(*loads: EngineLoad, kv_tokens: int = 1000) -> tuple[str, float, bool]:
    load, cost, violates_slo = pick_decode(loads, kv_tokens, limit=1.0)
    return load.iid, pytest.approx(cost), violates_slo


def test_a_penalty_is_part_of_the_cost_and_not_of_the_work() -> None:
    a, b = profiled("a"), profiled("b")
    a.penalise(0.3, 0.0)
    assert prefill(a, b) == ("b", 0.1, False)
    assert a.prefill_seconds(100) == pytest.approx(0.1)
    b.prefill_work = 0.31
    assert prefill(a, b) == ("a", 0.4, False), "no exclusion: it is the cheapest by now"


def test_a_penalty_on_decode_is_in_shares_of_the_target() -> None:
    a, b = profiled("a"), profiled("b")
    a.penalise(0.0, 0.3)
    assert decode(a, b) == ("b", 0.1, False)
    b.decode_changed(1, 3100)
    assert decode(a, b) == ("a", 0.4, False)
    a.decode_changed(1, 1000)
    assert decode(a) == ("a", 0.5, False), "it stays with the load"
    a.penalise(0.0, 0.0)
    assert decode(a) == ("a", 0.2, False)


def test_a_penalty_alone_never_misses_the_target() -> None:
    a = profiled("a")
    a.penalise(1.5, 1.5)
    assert prefill(a) == ("a", 1.6, False)
    assert decode(a) == ("a", 1.6, False)
    assert prefill(a, tokens=1001)[2], "without it the target is missed too"
    assert decode(a, kv_tokens=10_001)[2]


def test_an_engine_that_keeps_the_target_but_for_its_penalty_goes_before_one_that_misses_it() -> None:
    a, b = profiled("a"), profiled("b")
    a.penalise(1.5, 1.5)
    b.prefill_work = 1.2
    assert prefill(a, b) == ("a", 1.6, False), "though b costs 1.3"
    b.decode_changed(1, 12_000)
    assert decode(a, b) == ("a", 1.6, False)


def test_without_profiles_a_second_weighs_ten_thousand_tokens() -> None:
    a, b = neutral("a"), neutral("b")
    a.penalise(15_000.0, 15_000.0)
    b.prefill_work, b.kv_tokens = 14_000.0, 14_000
    b.decode_changed(0, 0)
    for load, _, misses in (
        pick_prefill((a, b), 100, ttft_s=math.inf),
        pick_decode((a, b), 100, limit=math.inf),
    ):
        assert (load.iid, misses) == ("b", False)
    b.prefill_work, b.kv_tokens = 16_000.0, 16_000
    b.decode_changed(0, 0)
    for load, _, misses in (
        pick_prefill((a, b), 100, ttft_s=math.inf),
        pick_decode((a, b), 100, limit=math.inf),
    ):
        assert (load.iid, misses) == ("a", False)
