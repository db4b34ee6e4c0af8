"""What a JSON document must be, field by field: a small language of checks for what others wrote. Pure.

A check tells the first thing that is wrong, with its place, what is wanted and what was found. Fields that a
shape does not name are let through: a newer version may tell more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from narwhal.model.numbers import count, finite

Shape = Callable[[Any, str], str]
"""Of a value and where it stands ("" at the top): what is wrong, "" for nothing."""

MISSING: Final = object()
"""Stands for the value of a field that is not there."""


def told(at: str, wanted: str, *, found: Any) -> str:
    return f"{at} must be {wanted}, not " + ("missing" if found is MISSING else f"{found!r:.80}")


def is_(wanted: str, holds: Callable[[Any], bool]) -> Shape:
    return lambda value, at: "" if holds(value) else told(at, wanted, found=value)


def or_null(shape: Shape) -> Shape:
    return lambda value, at: "" if value is None else shape(value, at)


def list_of(shape: Shape, wanted: str = "a list") -> Shape:
    def check(value: Any, at: str) -> str:
        if not isinstance(value, list | tuple):
            return told(at, wanted, found=value)
        found = (shape(one, f"{at}[{number}]") for number, one in enumerate(value))
        return next(filter(None, found), "")

    return check


def by_name(shape: Shape, *, some: bool = False) -> Shape:
    """An object with such a value under every name; `some`: and one name at least."""

    def check(value: Any, at: str) -> str:
        if not isinstance(value, Mapping):
            return told(at, "an object", found=value)
        if some and not value:
            return told(at, "an object with entries", found=value)
        return next(filter(None, (shape(one, _inner(at, name)) for name, one in value.items())), "")

    return check


def object_of(required: Mapping[str, Shape], **optional: Shape) -> Shape:
    def check(value: Any, at: str) -> str:
        if not isinstance(value, Mapping):
            return told(at, "an object", found=value)
        wrong = [shape(value.get(name, MISSING), _inner(at, name)) for name, shape in required.items()]
        wrong += [shape(value[name], _inner(at, name)) for name, shape in optional.items() if name in value]
        return next(filter(None, wrong), "")

    return check


def _inner(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TEXT: Final = is_("text", lambda value: isinstance(value, str))
FLAG: Final = is_("true or false", lambda value: isinstance(value, bool))
NUMBER: Final = is_("a number", _is_number)
"""Infinities too, which msgpack knows."""
FINITE: Final = is_("a finite number", lambda value: finite(value) is not None)
# More than a double counts exactly is damage: it could not be written again.
COUNT: Final = is_("an integer from 0 to 2^53", lambda value: count(value) is not None)
OBJECT: Final = is_("an object", lambda value: isinstance(value, dict))
THERE: Final = is_("there", lambda value: value is not MISSING)
"""For what is looked at again where it is used."""
