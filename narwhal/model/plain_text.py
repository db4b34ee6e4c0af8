"""The one door for text that an engine, a sidecar, a client or another router tells. Pure.

What is kept or shown of it is printable, short and Unicode: a control character forges log lines and steers
terminals, half a surrogate pair (`"\\ud800"` is good JSON) can be written into no document.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import orjson

MOST_CHARS: Final = 128
"""Of a foreign text that is kept or shown."""

_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1


def shown(text: str, *, most: int = MOST_CHARS) -> str:
    """What somebody else told, as a text of ours repeats it: printable, and cut where it is long."""
    told = escaped(text[: most + 1])
    return told if len(told) <= most else told[: most - 1] + "…"


def escaped(text: str) -> str:
    """The whole text, what is not printable as its escape."""
    return text if text.isprintable() else "".join(map(_printable, text))


def escaped_document(value: Any) -> Any:
    """Of a JSON document, every text."""
    match value:
        case str():
            return escaped(value)
        case dict():
            return {escaped(name): escaped_document(inner) for name, inner in value.items()}
        case list():
            return [escaped_document(inner) for inner in value]
    return value


def is_plain(text: str) -> bool:
    """Whether it may be kept as it is."""
    return 0 < len(text) <= MOST_CHARS and text.isprintable()


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def to_json(document: Mapping[str, Any]) -> bytes:
    """A document of ours as JSON. What is no Unicode, or no number of 64 bits, is written as its escape:
    the last defence, for no single word may keep the whole document from being written."""
    try:
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return orjson.dumps(writable(document), option=orjson.OPT_NON_STR_KEYS)


def writable(value: Any) -> Any:
    """The value with all its text in Unicode, integers within 64 bits, and null for NaN and infinity."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int() if not _LEAST_INT <= value <= _MOST_INT:
            return hex(value)
        case float() if not isfinite(value):
            return None
        case Mapping():
            return {writable(name): writable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [writable(inner) for inner in value]
    return value
