"""Samples to profiles: known engines are found again, errors are those of the samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from narwhal.measure.fit import (
    Observation,
    TooFewPoints,
    decode_row,
    fitted,
    observations,
    profile_of,
)
from narwhal.model.sample import Phase, Point, Sample


def prefill_seconds(tokens: int) -> float:
    return 2e-9 * tokens**2 + 3e-5 * tokens + 0.01


def interval_s(requests: int, tokens: int) -> float:
    return 4e-8 * tokens + 1e-5 * requests + 0.008


def samples(
    interval: Callable[[int, int], float] = interval_s, *, factors: tuple[float, ...] = (1.0,)
) -> list[Sample]:
    found = []
    for repeat, factor in enumerate(factors):
        for tokens in (64, 256, 1024, 4096):
            point = Point(Phase.PREFILL, 1, tokens)
            seconds = prefill_seconds(tokens) * factor
            found.append(Sample("e0", point, repeat, tokens, seconds, "0.32.0"))
        for requests in (1, 8, 64):
            for tokens in (128, 1024):
                point = Point(Phase.DECODE, requests, tokens)
                kv = requests * tokens
                seconds = interval(requests, kv) * factor
                found.append(Sample("e0", point, repeat, kv, seconds, "0.32.0"))
    return found


def test_a_known_engine_is_found_again() -> None:
    profile = profile_of("e0", samples(), kv_capacity_tokens=100_000, generation_digest="sha256:x")
    assert (profile.ttft_a, profile.ttft_b, profile.ttft_c) == pytest.approx((2e-9, 3e-5, 0.01), rel=1e-6)
    assert profile.tpot_slope == pytest.approx(4e-8, rel=1e-6)
    assert profile.tpot_request_slope == pytest.approx(1e-5, rel=1e-6)
    assert profile.tpot_intercept == pytest.approx(0.008, rel=1e-6)
    assert profile.decode_fit_mape < 1e-9
    assert profile.decode_cv_mape < 1e-6
    assert (profile.decode_min_requests, profile.decode_max_requests) == (1, 64)
    assert (profile.decode_min_kv_tokens, profile.decode_max_kv_tokens) == (128, 65536)
    assert (profile.kv_capacity_tokens, profile.generation_digest) == (100_000, "sha256:x")


def test_one_wild_repeat_of_three_changes_nothing() -> None:
    profile = profile_of(
        "e0", samples(factors=(1.0, 1.0, 9.0)), kv_capacity_tokens=None, generation_digest=None
    )
    assert profile.tpot_slope == pytest.approx(4e-8, rel=1e-6)
    assert profile.ttft_c == pytest.approx(0.01, rel=1e-6)


def test_what_no_line_fits_has_its_error_told_and_a_greater_one_left_out() -> None:
    def crooked(requests: int, tokens: int) -> float:
        return interval_s(requests, tokens) * (1.5 if requests == 8 else 1.0)

    profile = profile_of("e0", samples(crooked), kv_capacity_tokens=None, generation_digest=None)
    assert profile.decode_fit_mape > 0.05
    assert profile.decode_cv_mape > profile.decode_fit_mape


def test_an_engine_that_load_does_not_slow_down_has_the_least_slope() -> None:
    profile = profile_of(
        "e0", samples(lambda requests, tokens: 0.02), kv_capacity_tokens=None, generation_digest=None
    )
    assert profile.tpot_slope == 1e-12
    assert profile.tpot_intercept == pytest.approx(0.02)


def test_the_error_left_out_is_that_of_a_fit_without_the_point() -> None:
    seen = [Observation(1, 1, 1.0), Observation(1, 2, 1.0), Observation(1, 3, 1.0), Observation(1, 4, 2.0)]
    fit = fitted(seen, decode_row)
    without = [seen[:index] + seen[index + 1 :] for index in range(4)]
    errors = []
    for one, others in zip(seen, without, strict=True):
        shares = fitted(others, decode_row).coefficients
        predicted = sum(share * value for share, value in zip(shares, decode_row(one), strict=True))
        errors.append(abs(predicted - one.seconds) / one.seconds)
    assert fit.cv_mape == pytest.approx(sum(errors) / 4)


def test_too_few_points_are_named() -> None:
    few = [sample for sample in samples() if sample.point.requests < 8]
    with pytest.raises(TooFewPoints, match="e0: 2 decode points are measured, a fit needs 4"):
        profile_of("e0", few, kv_capacity_tokens=None, generation_digest=None)


def test_observations_are_medians_by_point() -> None:
    seen = observations(samples(factors=(1.0, 3.0, 2.0)), Phase.PREFILL)
    assert [one.tokens for one in seen] == [64, 256, 1024, 4096]
    assert seen[0].seconds == pytest.approx(prefill_seconds(64) * 2)
