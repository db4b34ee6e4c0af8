"""Server-sent events, sans I/O: bytes in as they were read, whole events out as they were sent.

Line ends are LF, CRLF or CR, also mixed; an event ends at a blank line and may be split anywhere, also
inside a UTF-8 sequence or a line end (WHATWG HTML, section 9.2.6).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from narwhal.errors import StreamBroken

# Two line ends in a row. A CR before an LF is half of a CRLF, never a line end of its own.
_BLANK_LINE = re.compile(rb"(\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE_END = re.compile(rb"\r\n|\n|\r")
# A blank line is at most four bytes, so a new read can complete one that began three bytes before it.
_OVERLAP = 3


class SseSplitter:
    """Cuts one stream into events; holds the incomplete tail, at most `limit` bytes of it."""

    __slots__ = ("_any_ends", "_limit", "_tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tail = bytearray()
        self._any_ends = False
        """The tail has a CR: its blank lines are not only LF LF."""

    @property
    def held(self) -> int:
        """Bytes of the event that is still incomplete."""
        return len(self._tail)

    def feed(self, data: bytes) -> list[bytes]:
        """Whole events in order, each with the blank line that ended it; may be empty.

        Joined with what `flush` returns they are the stream. Raises StreamBroken(kind="too_large").
        """
        if self._any_ends or data.find(b"\r") >= 0:
            return self._split_any(data)
        return self._split_held_lf(data) if self._tail else self._split_lf(data)

    def flush(self) -> list[bytes]:
        """At the end of the stream: the last event if it waited for the LF of a CRLF, else nothing."""
        tail, self._tail = bytes(self._tail), bytearray()
        match = _BLANK_LINE.search(tail, max(0, len(tail) - _OVERLAP))
        return [tail] if match and match.end() == len(tail) else []

    def _split_lf(self, data: bytes) -> list[bytes]:
        events = []
        start = 0
        while (at := data.find(b"\n\n", start)) >= 0:
            events.append(data[start : at + 2])
            start = at + 2
        if start < len(data):
            self._hold(data[start:])
        return events

    def _split_held_lf(self, data: bytes) -> list[bytes]:
        tail = self._tail
        scan = len(tail) - 1
        tail += data
        events = []
        start = 0
        while (at := tail.find(b"\n\n", scan)) >= 0:
            scan = at + 2
            events.append(bytes(tail[start:scan]))
            start = scan
        self._keep(start)
        return events

    def _split_any(self, data: bytes) -> list[bytes]:
        tail = self._tail
        scan = max(0, len(tail) - _OVERLAP)
        tail += data
        events = []
        start = 0
        while match := _BLANK_LINE.search(tail, scan):
            if self._may_go_on(match, len(tail)):
                break
            scan = match.end()
            events.append(bytes(tail[start:scan]))
            start = scan
        self._keep(start)
        self._any_ends = b"\r" in self._tail
        return events

    def _may_go_on(self, match: re.Match[bytes], end: int) -> bool:
        """A CR that ends the read may be half of a CRLF; streams of lone CRs are not kept waiting."""
        return match.end() == end and match.group().endswith(b"\r") and match.group(1) != b"\r"

    def _keep(self, start: int) -> None:
        """Only what comes after the whole events of the tail; a long tail is not copied for that."""
        if start:
            del self._tail[:start]
        self._check(len(self._tail))

    def _hold(self, rest: bytes) -> None:
        self._check(len(rest))
        self._tail += rest

    def _check(self, held: int) -> None:
        if held > self._limit:
            raise StreamBroken(f"an event is longer than {self._limit} bytes", kind="too_large")


def event_data(event: bytes) -> bytes:
    """The `data` of one event: its data lines joined with LF, b"" for comments and blank lines."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n"):
        line = event[6:-2]
        if line.find(b"\n") < 0 and line.find(b"\r") < 0:
            return line
    lines = [_value(line) for line in _LINE_END.split(event) if line.startswith(b"data:") or line == b"data"]
    return b"\n".join(lines)


def _value(line: bytes) -> bytes:
    value = line[5:]
    return value[1:] if value.startswith(b" ") else value


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Media types are case-insensitive (RFC 9110 section 8.3.1); header names here are lower case."""
    return headers.get("content-type", "").lower().startswith("text/event-stream")
