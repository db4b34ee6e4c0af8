"""Proof by comparison that a chunk is one plain event, at the price of two comparisons and three searches.

The events of one stream differ in one JSON string, the generated text. So when an event has been found
plain, its bytes up to the opening quote of that string and from the closing quote on become a template. A
chunk that begins and ends like it, with no quote, line end or final backslash between, has the same
structure with another string in it: it is plain, whatever the text says.
"""

from __future__ import annotations

import re

_TEXT = re.compile(rb'"(?:text|content|reasoning|reasoning_content)":"((?:[^"\\]|\\.)*)"', re.DOTALL)
_LARGEST_CHUNK = 4096
_FRAMING = 2
"""The CRLF behind a chunk's data."""


def _chunk_heads() -> list[bytes]:
    """By the length of a whole chunk: its size line (lower-case hex, as engines write it), or nothing."""
    heads = [b""] * (_LARGEST_CHUNK + 1)
    for size in range(1, _LARGEST_CHUNK):
        head = b"%x\r\n" % size
        length = len(head) + size + _FRAMING
        if length <= _LARGEST_CHUNK:
            heads[length] = head
    return heads


_HEADS = _chunk_heads()


def chunk_head(chunk: bytes) -> int:
    """Length of the size line if `chunk` is exactly one HTTP/1.1 chunk, else 0."""
    head = _HEADS[len(chunk)] if len(chunk) <= _LARGEST_CHUNK else b""
    return len(head) if head and chunk.startswith(head) and chunk.endswith(b"\r\n") else 0


class Template:
    """`size`, `start`, `lead`, `end`, `stop` are for the one caller that compares inline:
    a chunk of `size` bytes starts with `start` (`lead` bytes) and ends with `end` (from `stop` on)."""

    __slots__ = ("_prefix", "_suffix", "end", "lead", "size", "start", "stop")

    def __init__(self, prefix: bytes = b"", suffix: bytes = b"") -> None:
        self._prefix = prefix
        self._suffix = suffix
        self.size = -1
        self.start = self.end = b""
        self.lead = self.stop = 0

    @classmethod
    def of(cls, event: bytes) -> Template | None:
        """From an event that has been found plain. Events without a text string teach nothing."""
        match = _TEXT.search(event)
        return cls(event[: match.start(1)], event[match.end(1) :] + b"\r\n") if match else None

    def fit(self, size: int) -> bool:
        """Makes the comparison ready for chunks of another size. False: no such chunk can match."""
        head = _HEADS[size] if size <= _LARGEST_CHUNK else b""
        lead = len(head) + len(self._prefix)
        if not head or not self._prefix or size < lead + len(self._suffix):
            return False
        self.size = size
        self.start = head + self._prefix
        self.lead = lead
        self.end = self._suffix
        self.stop = size - len(self._suffix)
        return True
