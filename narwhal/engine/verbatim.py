"""The hot path of the router: what a transport calls for each read while a stream passes verbatim.

An engine connection hands its transport over to this protocol between two chunks of a decode stream, and
takes it back when a read leaves the stream in any other state. So nothing here asks what state that is: a
read is one plain event in one HTTP chunk, or it goes to the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from narwhal.engine.events import is_plain
from narwhal.engine.template import BLANK, KNOWN_TEXTS, SIZE_LINES, Template, chunk_head, is_one_string

if TYPE_CHECKING:
    from collections.abc import Callable

_LEARN_EVERY = 8
"""A template that does not match is replaced at most once in so many events."""


class Verbatim(asyncio.Protocol):
    """One decode stream. `passed` counts the events that went to `write`, framing included.

    `connection` takes every other read, and what else a transport tells.
    """

    __slots__ = (
        "_connection", "_learn_at", "_prefix", "_start", "_stop", "_suffix", "_write", "passed",
    )  # fmt: skip

    def __init__(self, connection: asyncio.Protocol, write: Callable[[bytes], None]) -> None:
        self._connection = connection
        self._write = write
        self.passed = 0
        self._learn_at = 0
        self._learn(BLANK)

    def data_received(self, data: bytes) -> None:
        """Every frame comes here with cold caches, so what counts is how much of code and memory it
        touches: see the counted test before adding anything. `is_one_string` says what a text may be."""
        try:
            line = SIZE_LINES[len(data)]
        except IndexError:
            self._connection.data_received(data)
            return
        text = data[len(line) + self._start : self._stop]
        if b"".join((line, self._prefix, text, self._suffix)) == data and (
            text in KNOWN_TEXTS or is_one_string(text)
        ):
            self.passed += 1
            self._write(data)
        else:
            self._take_unlike(data)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def _take_unlike(self, data: bytes) -> None:
        """What the template does not prove: by the general search, and perhaps a new template."""
        head = chunk_head(data)
        event = data[head:-2]
        if not head or not is_plain(event):
            self._connection.data_received(data)
            return
        if self.passed >= self._learn_at:
            self._learn_at = self.passed + _LEARN_EVERY
            template = Template.of(event)
            if template is not None:
                self._learn(template)
        self.passed += 1
        self._write(data)

    def _learn(self, template: Template) -> None:
        self._prefix, self._suffix = template.prefix, template.suffix
        self._start, self._stop = len(template.prefix), -len(template.suffix)
