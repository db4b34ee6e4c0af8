"""What one value may be: kinds, ranges and choices, each able to say itself in the words of an error.

A message reads `<path> must be <words>, got <value as JSON>`. Rules are plain data, so that the checks,
the generated documentation and the tests (which derive wrong values from them) share one source.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from narwhal.model.plain_text import MOST_CHARS, is_plain

SHOWN_CHARS: Final = 80
"""Longest value quoted in a message; a longer one is cut."""


class Kind(StrEnum):
    """The JSON type of a value; the text is its place in a sentence."""

    INTEGER = "an integer"
    NUMBER = "a finite number"
    BOOLEAN = "true or false"
    TEXT = "a string"

    def holds(self, value: Any) -> bool:
        """True when `value` (as JSON gave it) is of this kind. A boolean is no number, 1.0 no integer."""
        if self is Kind.BOOLEAN:
            return isinstance(value, bool)
        if self is Kind.TEXT:
            return isinstance(value, str) and _encodable(value)
        if isinstance(value, bool):
            return False
        if self is Kind.INTEGER:
            return isinstance(value, int)
        return isinstance(value, int | float) and _finite(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _encodable(text: str) -> bool:
    """False for lone surrogates: such text could be neither logged nor sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """The value as JSON, for a message: ASCII only, cut when long."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**SHOWN_CHARS:
        return "a number of over 80 digits"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 4] + '..."'


@dataclass(frozen=True, slots=True)
class Anything:
    """No rule beyond the kind."""

    words: str = ""

    def accepts(self, value: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Span:
    """A number between two ends; an `open` end is itself outside. `or_zero` lets 0 stand for *off*."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    or_zero: bool = False

    @property
    def words(self) -> str:
        parts = []
        if self.low is not None:
            parts.append(f"{'>' if self.low_open else '≥'} {self.low:g}")
        if self.high is not None:
            parts.append(f"{'<' if self.high_open else '≤'} {self.high:g}")
        return ("0 or " if self.or_zero else "") + " and ".join(parts)

    def accepts(self, value: Any) -> bool:
        if self.or_zero and value == 0:
            return True
        if self.low is not None and (value <= self.low if self.low_open else value < self.low):
            return False
        return self.high is None or not (value >= self.high if self.high_open else value > self.high)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    @property
    def words(self) -> str:
        named = [shown(value) for value in self.values]
        return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} or {named[-1]}"

    def accepts(self, value: Any) -> bool:
        return any(value == one and type(value) is type(one) for one in self.values)


@dataclass(frozen=True, slots=True)
class NotBlank:
    """Text with something in it."""

    words: str = "a nonempty string"

    def accepts(self, value: Any) -> bool:
        return bool(value.strip())


@dataclass(frozen=True, slots=True)
class Plain:
    """Text that is taken from an engine: any other is never met."""

    words: str = f"a nonempty string of printable characters, {MOST_CHARS} at most"

    def accepts(self, value: Any) -> bool:
        return bool(value.strip()) and is_plain(value)


@dataclass(frozen=True, slots=True)
class Shaped:
    """Text of one form, `pattern` for the whole of it; `words` names the form."""

    pattern: str
    words: str

    def accepts(self, value: Any) -> bool:
        return re.fullmatch(self.pattern, value) is not None


Rule = Anything | Span | OneOf | NotBlank | Plain | Shaped

ANYTHING: Final = Anything()
NOT_BLANK: Final = NotBlank()
PLAIN: Final = Plain()
POSITIVE: Final = Span(0, low_open=True)
NOT_NEGATIVE: Final = Span(0)
AT_LEAST_ONE: Final = Span(1)
SHARE: Final = Span(0, 1, low_open=True)


class _Required:
    __slots__ = ()

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""The default of a field that has none."""

UNSET: Final = None
"""The default of a field that may stay away and then has no value at all."""


@dataclass(frozen=True, slots=True)
class Field:
    """One value of the fleet file.

    `path` is dotted, `engines[]` for each engine. `default` is REQUIRED, UNSET or the value. `later`
    names the part of Narwhal that will act on the field when this version does not yet; `at_rest` is
    the value that asks nothing of that part. `per_host` fields are left out of the config digest.
    """

    path: str
    kind: Kind
    default: Any
    doc: str
    rule: Rule = ANYTHING
    later: str = ""
    at_rest: Any = REQUIRED
    per_host: bool = False

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def problem(self, value: Any) -> str:
        """What is wrong with `value`, to follow the path in a message; "" when nothing is."""
        if not self.kind.holds(value):
            kind = "a number" if self.kind is Kind.NUMBER and _not_a_number(value) else self.kind
            if isinstance(value, str) and self.kind is Kind.TEXT:
                kind = "a string without half a surrogate pair"
            return f"must be {kind}, got {shown(value)}"
        return "" if self.rule.accepts(value) else f"must be {self.rule.words}, got {shown(value)}"

    def settled(self, value: Any) -> Any:
        """An accepted value in the type that the settings carry."""
        return float(value) if self.kind is Kind.NUMBER and value is not None else value


def _not_a_number(value: Any) -> bool:
    return isinstance(value, bool) or not isinstance(value, int | float)
