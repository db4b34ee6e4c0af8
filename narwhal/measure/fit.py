"""From samples to a profile (control.md section 1). Pure.

    prefill seconds = ttft_a·n² + ttft_b·n + ttft_c
    token interval  = tpot_slope·(resident KV tokens) + tpot_request_slope·(requests) + tpot_intercept

Errors count relative to what was measured, so that short prompts and small batches are fitted as well as
long and large ones. Of the repeats of one point the median counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from narwhal.errors import NarwhalError
from narwhal.measure.least_squares import nonnegative
from narwhal.model.engine import EngineProfile
from narwhal.model.sample import Phase, Point, Sample

FEWEST_POINTS = 4
"""Three coefficients always fit three points: one more is needed to see an error, and to leave one out."""
SMALLEST_SLOPE = 1e-12
"""Seconds per KV token that stand for *none measured*: a profile's slope must be above 0."""

Row = Sequence[float]


@dataclass(frozen=True, slots=True)
class Observation:
    """The median of one point."""

    requests: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """`fit_mape`: mean relative error at the points; `cv_mape`: at each point with that one left out."""

    coefficients: tuple[float, ...]
    fit_mape: float
    cv_mape: float


class TooFewPoints(NarwhalError):
    """The sentence names phase and count."""


def observations(samples: Iterable[Sample], phase: Phase) -> list[Observation]:
    """One for each point of `phase` that has samples, in the order of points."""
    by_point: dict[Point, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.point.phase is phase:
            by_point[sample.point].append(sample)
    return [
        Observation(
            requests=point.requests,
            tokens=round(median(sample.tokens for sample in found)),
            seconds=median(sample.seconds for sample in found),
        )
        for point, found in sorted(by_point.items())
    ]


def prefill_row(seen: Observation) -> Row:
    return (float(seen.tokens) ** 2, float(seen.tokens), 1.0)


def decode_row(seen: Observation) -> Row:
    return (float(seen.tokens), float(seen.requests), 1.0)


def fitted(seen: Sequence[Observation], row_of: Callable[[Observation], Row]) -> Fit:
    """`seen` has at least FEWEST_POINTS, each of more than 0 seconds."""
    coefficients = _coefficients(seen, row_of)
    left_out = [
        _error(one, row_of, coefficients=_coefficients([*seen[:index], *seen[index + 1 :]], row_of))
        for index, one in enumerate(seen)
    ]
    return Fit(
        coefficients=coefficients,
        fit_mape=fmean(_error(one, row_of, coefficients=coefficients) for one in seen),
        cv_mape=fmean(left_out),
    )


def _coefficients(seen: Sequence[Observation], row_of: Callable[[Observation], Row]) -> tuple[float, ...]:
    rows = [[value / one.seconds for value in row_of(one)] for one in seen]
    return nonnegative(rows, [1.0] * len(rows))


def _error(
    seen: Observation, row_of: Callable[[Observation], Row], *, coefficients: tuple[float, ...]
) -> float:
    predicted = sum(share * value for share, value in zip(coefficients, row_of(seen), strict=True))
    return abs(predicted - seen.seconds) / seen.seconds


def profile_of(
    iid: str, samples: Iterable[Sample], *, kv_capacity_tokens: int | None, generation_digest: str | None
) -> EngineProfile:
    """Raises TooFewPoints."""
    samples = list(samples)
    prefill, decode = (_enough(iid, observations(samples, phase), phase=phase) for phase in Phase)
    ttft, tpot = fitted(prefill, prefill_row), fitted(decode, decode_row)
    slope, request_slope, intercept = tpot.coefficients
    return EngineProfile(
        iid=iid,
        ttft_a=ttft.coefficients[0],
        ttft_b=ttft.coefficients[1],
        ttft_c=ttft.coefficients[2],
        tpot_slope=max(slope, SMALLEST_SLOPE),
        tpot_request_slope=request_slope,
        tpot_intercept=intercept,
        kv_capacity_tokens=kv_capacity_tokens,
        generation_digest=generation_digest,
        decode_min_requests=min(one.requests for one in decode),
        decode_max_requests=max(one.requests for one in decode),
        decode_min_kv_tokens=min(one.tokens for one in decode),
        decode_max_kv_tokens=max(one.tokens for one in decode),
        decode_fit_mape=tpot.fit_mape,
        decode_cv_mape=tpot.cv_mape,
    )


def _enough(iid: str, seen: list[Observation], *, phase: Phase) -> list[Observation]:
    if len(seen) < FEWEST_POINTS:
        raise TooFewPoints(f"{iid}: {len(seen)} {phase} points are measured, a fit needs {FEWEST_POINTS}")
    return seen
