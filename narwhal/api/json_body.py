"""Strict JSON of client bodies: what passes here reaches an engine with the same meaning.

The standard parser with its hooks, because faster ones accept duplicate keys and round large integers.
Refused with BadRequest: invalid UTF-8, anything but one JSON object, duplicate keys, NaN and Infinity,
floats that overflow, lone surrogates, nesting deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from narwhal.errors import BadRequest
from narwhal.model.plain_text import shown
from narwhal.model.wire_json import decode_object, huge_integer

MAX_DEPTH = 200
"""Far above any tool schema, far below where encoding the body again would run out of stack."""

_ESCAPES = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F])|.)")
"""One escape of a JSON string at a time; group 1 is half a surrogate pair without its other half."""

_TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH} levels"


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises BadRequest with a sentence for the client."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not valid UTF-8 at byte {error.start}") from None
    value = _parse(text)
    if type(value) is not dict:
        raise BadRequest("the body must be a JSON object")
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise BadRequest(_TOO_DEEP)
    if ("\\ud" in text or "\\uD" in text) and any(m[1] for m in _ESCAPES.finditer(text)):
        raise BadRequest("the body has a lone surrogate in a string")
    return value


def _parse(text: str) -> Any:
    try:
        return decode_object(text, _DECODER)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise BadRequest(f"the body is not valid JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise BadRequest(_TOO_DEEP) from None
    except ValueError:
        # Only int() is left to raise it: more digits than Python converts. Slower, so tried last.
        return _HUGE_DECODER.decode(text)


def _integer(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return huge_integer(text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadRequest(f"the body has a duplicate key: {shown(twice)}", param=shown(twice))
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadRequest(f"the body has a number that overflows: {text[:32]}")
    return value


def _refuse_constant(name: str) -> Any:
    raise BadRequest(f"the body is not valid JSON: {name} is not a JSON number")


def _depth(value: Any) -> int:
    """Levels of arrays and objects, without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            below += item.values() if type(item) is dict else item
        level = [item for item in below if type(item) is dict or type(item) is list]
    return depth


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_finite, parse_constant=_refuse_constant)
_HUGE_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_finite, parse_constant=_refuse_constant, parse_int=_integer
)
