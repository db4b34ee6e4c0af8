"""The one door for numbers that somebody else wrote: in a saved document, a file, an answer. Pure.

JSON in Python knows integers that no double holds, and `1e999` is infinite: arithmetic with the first raises
OverflowError, the second cannot be written again.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

MOST_EXACT: Final = 2**53
"""More is no count: a double does not hold it exactly."""
LAST_TIME: Final = 253_402_300_799.0
"""Unix seconds: 9999 ends. No calendar that we show times by goes on."""


def finite(value: Any) -> float | None:
    """A number as a double. None for anything else, and where no double holds it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def seconds(value: Any) -> float | None:
    """A duration: 0 or more."""
    number = finite(value)
    return number if number is not None and 0.0 <= number <= LAST_TIME else None


def unix_time(value: Any) -> float | None:
    """Unix seconds that a calendar can show."""
    return seconds(value) or None


def count(value: Any) -> int | None:
    """An integer from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MOST_EXACT else None


def json_integer(digits: str) -> int | float:
    """`parse_int` of `json.loads`: one that needs over 64 bits becomes a double, for it could not be written
    again. Raises ValueError."""
    number = json_number(digits)
    return int(digits) if abs(number) < 2**63 else number


def json_number(text: str) -> float:
    """`parse_float` of `json.loads`. Raises ValueError where no double holds it."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:32]} is no number that a double holds")
    return number
