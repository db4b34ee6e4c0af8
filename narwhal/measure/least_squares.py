"""Least squares with coefficients that are not negative, for a handful of unknowns.

Exact: the solution is the plain one over the columns where it is positive, so all sets of columns are tried
(eight for three unknowns) and the best one that is positive throughout wins. Each is solved by orthogonal
columns, which are brought to length one first: squares of token counts stand beside ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

Column = list[float]

_DEPENDENT = 1e-9
"""A column keeps at least this share of its length beside the others, or says nothing of its own."""


def nonnegative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> tuple[float, ...]:
    """The x ≥ 0 with the smallest sum of (row · x − target)², one coefficient a column.

    `rows` are equally long, at most six columns: the sets of columns double with each.
    """
    columns = [list(column) for column in zip(*rows, strict=True)]
    best = [0.0] * len(columns)
    error = _error(rows, targets, solution=best)
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            found = _solved([columns[index] for index in chosen], targets)
            if found is None or min(found) < 0:
                continue
            tried = [0.0] * len(columns)
            for index, value in zip(chosen, found, strict=True):
                tried[index] = value
            if (worse := _error(rows, targets, solution=tried)) < error:
                best, error = tried, worse
    return tuple(best)


def _error(rows: Sequence[Sequence[float]], targets: Sequence[float], *, solution: Sequence[float]) -> float:
    return math.fsum((_dot(row, solution) - target) ** 2 for row, target in zip(rows, targets, strict=True))


def _solved(columns: Sequence[Column], targets: Sequence[float]) -> list[float] | None:
    """Plain least squares over these columns; None where they depend on each other."""
    lengths = [math.sqrt(_dot(column, column)) for column in columns]
    if min(lengths) == 0:
        return None
    basis: list[Column] = []
    triangle: list[list[float]] = []
    for column, length in zip(columns, lengths, strict=True):
        rest = [value / length for value in column]
        shares = [0.0] * len(basis)
        for _ in range(2):  # the second pass takes away what rounding left of the first
            for index, direction in enumerate(basis):
                share = _dot(direction, rest)
                shares[index] += share
                rest = [value - share * part for value, part in zip(rest, direction, strict=True)]
        norm = math.sqrt(_dot(rest, rest))
        if norm < _DEPENDENT:
            return None
        basis.append([value / norm for value in rest])
        triangle.append([*shares, norm])
    wanted = [_dot(direction, targets) for direction in basis]
    scaled = _back(triangle, wanted)
    return [value / length for value, length in zip(scaled, lengths, strict=True)]


def _back(triangle: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Solves the upper triangle whose column number j is `triangle[j]`."""
    solution = list(wanted)
    for last in range(len(triangle) - 1, -1, -1):
        solution[last] /= triangle[last][last]
        for row in range(last):
            solution[row] -= triangle[last][row] * solution[last]
    return solution


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, map(float, left), map(float, right)))
