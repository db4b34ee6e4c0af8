"""Times inside handoff documents: remaining seconds shrink while a document waits, ages grow. Pure.

Any part of a document may hold them, under these names; what else is in it is not looked at. A thing with
nothing left of its time is over and goes (failures.md section 11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narwhal.model.numbers import finite

REMAINING = "remaining_s"
AGE = "age_s"
_SIGNS = {REMAINING: -1, AGE: 1}
ALIKE_S = 0.05
"""Two accounts of one instant that differ by less tell the same."""


def aged(value: Any, by_s: float) -> Any:
    """The same after `by_s` seconds, as new objects. By 0 or less: unchanged."""
    if by_s <= 0:
        return value
    if isinstance(value, Mapping):
        return {
            name: round(part + _SIGNS[name] * by_s, 3) if _is_time(name, part) else aged(part, by_s)
            for name, part in value.items()
            if not _is_over(part, by_s)
        }
    if isinstance(value, list | tuple):
        return [aged(part, by_s) for part in value if not _is_over(part, by_s)]
    return value


def alike(a: Any, b: Any) -> bool:
    """Equal but for the last digits of times."""
    if a == b:
        return True
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike_field(name, (a[name], b[name])) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(alike(one, other) for one, other in zip(a, b, strict=True))
    return False


def _alike_field(name: str, pair: tuple[Any, Any]) -> bool:
    if all(_is_time(name, value) for value in pair):
        return bool(abs(pair[0] - pair[1]) < ALIKE_S)
    return alike(*pair)


def _is_time(name: str, value: Any) -> bool:
    return name in _SIGNS and finite(value) is not None


def _is_over(value: Any, by_s: float) -> bool:
    """A hold, a held handoff: a thing whose own time has run out."""
    left: Any = value.get(REMAINING) if isinstance(value, Mapping) else None
    return _is_time(REMAINING, left) and bool(left <= by_s)
