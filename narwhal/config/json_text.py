"""Strict JSON for files that people write: every oddity is told with its place, no key silently wins.

Accepts a UTF-8 byte order mark and any line ends. Keys that begin with `_` are annotations and are
dropped, at every depth.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from narwhal.errors import ConfigError

ANNOTATION: Final = "_"
DIGITS_KEPT: Final = 300
"""A longer integer becomes an infinity: no field takes it, and int() would refuse it at 4,300."""


class Spoiled:
    """Stands where a value was that is reported already."""

    __slots__ = ()


SPOILED: Final = Spoiled()


class _Pairs(list[tuple[str, Any]]):
    """One JSON object as its pairs, so that a duplicate key is still there to be told."""


def parse(data: bytes) -> tuple[Any, list[str]]:
    """The document as dicts, lists and scalars, and one sentence for each oddity inside it.

    Where a value is unusable (NaN, a number too large, the second of two equal keys) SPOILED stands in
    its place. Raises ConfigError with the one problem of a text that is no JSON at all.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None
    try:
        loaded = json.loads(text, object_pairs_hook=_Pairs, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: line {error.lineno} column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ConfigError("not readable: nested too deeply") from None
    problems: list[str] = []
    return _plain(loaded, "", problems=problems), problems


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= DIGITS_KEPT else math.inf


def _plain(value: Any, path: str, *, problems: list[str]) -> Any:
    if isinstance(value, _Pairs):
        return _object(value, path, problems=problems)
    if isinstance(value, list):
        return [_plain(item, f"{path}[{index}]", problems=problems) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity"
        problems.append(f"{path or 'the document'} must be a finite number, got {name}")
        return SPOILED
    return value


def _object(pairs: _Pairs, path: str, *, problems: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        inner = f"{path}.{printable(key)}" if path else printable(key)
        plain = _plain(value, inner, problems=problems)
        if key.startswith(ANNOTATION):
            continue
        if key in result:
            problems.append(f"{inner} is given twice")
            plain = SPOILED
        result[key] = plain
    return result


def printable(key: str) -> str:
    """A key as a message shows it: quoted where it is empty, long or holds control characters."""
    if key and len(key) <= 80 and key.isprintable() and key.isascii():
        return key
    return json.dumps(key[:80])
