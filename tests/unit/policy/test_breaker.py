"""Streaks per engine and class: the verdict table and the clearing table, row by row."""

from __future__ import annotations

import pytest

from narwhal.model.evidence import FailureClass
from narwhal.policy.breaker import Breaker, Proof, Verdict

C = FailureClass


def breaker() -> Breaker:
    return Breaker(eject_after=3, liveness_misses=2)


@pytest.mark.parametrize(
    ("failure", "threshold", "verdict"),
    [
        (C.CONNECTION, 3, Verdict.EJECT),
        (C.TIMEOUT, 3, Verdict.HEALTH),
        (C.STREAM, 3, Verdict.HOLD),
        (C.OVERLOAD, 3, Verdict.HEALTH),
        (C.INFERENCE_STATUS, 3, Verdict.HOLD),
        (C.KV_HANDOFF, 3, Verdict.HOLD),
        (C.LIVENESS, 2, Verdict.EJECT),
    ],
)
def test_a_streak_gives_its_verdict_at_the_threshold_and_with_each_failure_after_it(
    failure: FailureClass, threshold: int, verdict: Verdict
) -> None:
    seen = breaker()
    assert [seen.failed("e0", failure) for _ in range(threshold - 1)] == [None] * (threshold - 1)
    assert [seen.failed("e0", failure) for _ in range(2)] == [verdict] * 2
    assert seen.streaks() == {"e0": {failure.value: threshold + 1}}


@pytest.mark.parametrize(
    ("proof", "cleared"),
    [
        (Proof.ANSWER, {C.CONNECTION, C.INFERENCE_STATUS}),
        (Proof.HEALTH, {C.CONNECTION, C.TIMEOUT, C.OVERLOAD, C.LIVENESS}),
        (Proof.PREFILL, {C.CONNECTION, C.INFERENCE_STATUS, C.KV_HANDOFF}),
        (Proof.DECODE, {C.CONNECTION, C.INFERENCE_STATUS, C.STREAM}),
        (Proof.INFERENCE, {C.CONNECTION, C.INFERENCE_STATUS, C.KV_HANDOFF, C.STREAM}),
    ],
)
def test_a_success_clears_its_classes_and_no_other(proof: Proof, cleared: set[FailureClass]) -> None:
    seen = breaker()
    for failure in FailureClass:
        seen.failed("e0", failure)
        seen.failed("e1", failure)
    assert seen.proved("e0", proof) == cleared
    assert seen.streaks()["e0"] == {c.value: 1 for c in sorted(set(FailureClass) - cleared)}
    assert seen.streaks()["e1"] == {c.value: 1 for c in sorted(FailureClass)}


def test_streaks_are_per_engine_and_class() -> None:
    seen = breaker()
    for failure in (C.STREAM, C.CONNECTION, C.STREAM):
        assert seen.failed("e0", failure) is None
    assert seen.failed("e1", C.STREAM) is None
    assert seen.failed("e0", C.STREAM) is Verdict.HOLD
    assert seen.streaks() == {"e0": {"connection": 1, "stream": 3}, "e1": {"stream": 1}}


def test_a_success_in_between_starts_the_streak_anew() -> None:
    seen = breaker()
    seen.failed("e0", C.CONNECTION)
    seen.failed("e0", C.CONNECTION)
    seen.proved("e0", Proof.PREFILL)
    assert not seen.suspects("e0")
    assert seen.failed("e0", C.CONNECTION) is None
    assert seen.count("e0", C.CONNECTION) == 1


def test_what_was_not_the_engine_s_fault_is_taken_back() -> None:
    seen = breaker()
    seen.failed("e0", C.STREAM)
    seen.failed("e0", C.STREAM)
    seen.take_back("e0", C.STREAM)
    assert seen.count("e0", C.STREAM) == 1
    seen.take_back("e0", C.STREAM)
    seen.take_back("e0", C.STREAM)
    seen.take_back("e1", C.STREAM)
    assert seen.streaks() == {}


def test_restored_streaks_replace_what_was_and_what_cannot_be_read_is_left_out() -> None:
    seen = breaker()
    seen.failed("e2", C.STREAM)
    told = {
        "e0": {"stream": 2, "connection": 0, "unheard": 3, "timeout": True},
        "e1": "much",
        "foreign": {"stream": 2},
    }
    seen.restore(told, engines=("e0", "e1", "e2"))
    assert seen.streaks() == {"e0": {"stream": 2}}
    assert seen.failed("e0", C.STREAM) is Verdict.HOLD
    seen.restore(seen.streaks(), engines=("e0",))
    assert seen.streaks() == {"e0": {"stream": 3}}
    seen.forget("e0")
    assert seen.streaks() == {}
