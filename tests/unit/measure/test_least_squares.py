"""The solver: exact where the answer is known, and never beaten by a neighbour."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.measure.least_squares import nonnegative

numbers = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))
rows = st.lists(st.tuples(numbers, numbers, numbers), min_size=3, max_size=8)


def error(matrix: list[tuple[float, ...]], targets: list[float], solution: tuple[float, ...]) -> float:
    return math.fsum(
        (math.fsum(a * x for a, x in zip(row, solution, strict=True)) - target) ** 2
        for row, target in zip(matrix, targets, strict=True)
    )


def test_an_exact_answer_is_found_across_twelve_orders_of_magnitude() -> None:
    wanted = (3e-10, 2e-5, 0.02)
    matrix = [(float(n) ** 2, float(n), 1.0) for n in (16, 64, 256, 1024, 4096, 16384)]
    targets = [sum(a * x for a, x in zip(row, wanted, strict=True)) for row in matrix]
    assert nonnegative(matrix, targets) == pytest.approx(wanted, rel=1e-6)


def test_a_coefficient_that_would_be_negative_is_zero_and_the_rest_is_solved_anew() -> None:
    # Plainly y = 2 - x; without a negative slope the mean is best.
    assert nonnegative([(1.0, 0.0), (1.0, 1.0)], [2.0, 1.0]) == pytest.approx((1.5, 0.0))


def test_columns_that_say_the_same_need_only_one() -> None:
    found = nonnegative([(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], [1.0, 2.0, 3.0])
    assert error([(1.0, 2.0), (2.0, 4.0)], [1.0, 2.0], found) == pytest.approx(0.0, abs=1e-18)


def test_nothing_explains_negative_targets() -> None:
    assert nonnegative([(1.0, 2.0), (1.0, 3.0)], [-1.0, -2.0]) == (0.0, 0.0)


@given(rows, st.data())
def test_no_step_to_a_neighbour_is_better(matrix: list[tuple[float, ...]], data: st.DataObject) -> None:
    targets = data.draw(st.lists(numbers, min_size=len(matrix), max_size=len(matrix)))
    found = nonnegative(matrix, targets)
    assert min(found) >= 0
    least = error(matrix, targets, found)
    for index in range(3):
        for step in (-0.01, 0.01):
            moved = tuple(max(0.0, x + step) if at == index else x for at, x in enumerate(found))
            assert error(matrix, targets, moved) >= least - 1e-7 * (1 + least)
