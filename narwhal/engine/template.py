"""Proof by comparison that a chunk is one plain event, at the price of a cut, a join and one look-up.

The events of one stream differ in one JSON string, the generated text. So when an event has been found
plain, its bytes up to the opening quote of that string and from the closing quote on become a template. A
chunk that is its own size line, the one, a text without quote, line end or final backslash, and the other
has the same structure with another string in it: it is plain, whatever the text says.
"""

from __future__ import annotations

import re

_TEXT = re.compile(rb'"(?:text|content|reasoning|reasoning_content)":"((?:[^"\\]|\\.)*)"', re.DOTALL)

LARGEST_CHUNK = 4096
_FRAMING = 2
"""The CRLF behind a chunk's data."""
_FITS_NOTHING = b"-" * (LARGEST_CHUNK + 1)
"""Longer than any chunk that it is compared with."""

_KNOWN_TEXTS = 16_384
_KNOWN_TEXT_BYTES = 48


def _size_lines() -> list[bytes]:
    """By the length of a whole chunk: its size line (lower-case hex, as engines write it).

    No chunk is one byte longer than one with the largest size of so many digits.
    """
    lines = [_FITS_NOTHING] * (LARGEST_CHUNK + 1)
    for size in range(1, LARGEST_CHUNK):
        line = b"%x\r\n" % size
        length = len(line) + size + _FRAMING
        if length <= LARGEST_CHUNK:
            lines[length] = line
    return lines


SIZE_LINES = _size_lines()


class Template:
    """`prefix` and `suffix` (with the CRLF) of every event like the learned one.

    The hot path (verbatim.py) compares inline: size line, prefix, a text that `is_one_string` and suffix
    must be the whole chunk.
    """

    __slots__ = ("prefix", "suffix")

    def __init__(self, prefix: bytes, suffix: bytes) -> None:
        self.prefix = prefix
        self.suffix = suffix

    @classmethod
    def of(cls, event: bytes) -> Template | None:
        """From an event that has been found plain. Events without a text string teach nothing."""
        match = _TEXT.search(event)
        return cls(event[: match.start(1)], event[match.end(1) :] + b"\r\n") if match else None


BLANK = Template(_FITS_NOTHING, _FITS_NOTHING)
"""Before anything has been learned."""

KNOWN_TEXTS: set[bytes] = set()
"""Texts that are one JSON string: a model's tokens come again and again. Bounded in number and length."""


def is_one_string(text: bytes) -> bool:
    """Between two quotes, `text` cannot end the string before the second one."""
    if text.find(b'"') >= 0 or text.find(b"\n") >= 0 or text.find(b"\r") >= 0 or text.endswith(b"\\"):
        return False
    if len(text) <= _KNOWN_TEXT_BYTES:
        if len(KNOWN_TEXTS) >= _KNOWN_TEXTS:
            KNOWN_TEXTS.clear()
        KNOWN_TEXTS.add(text)
    return True


def chunk_head(chunk: bytes) -> int:
    """Length of the size line if `chunk` is exactly one HTTP/1.1 chunk, else 0."""
    line = SIZE_LINES[len(chunk)] if len(chunk) <= LARGEST_CHUNK else _FITS_NOTHING
    return len(line) if chunk.startswith(line) and chunk.endswith(b"\r\n") else 0
