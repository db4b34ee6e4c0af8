"""The decode leg on one connection: reads in, whole events into a sink, in the read's own call.

A read that is exactly one plain event in one HTTP chunk goes on as it is, framing included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from narwhal.engine.events import is_plain
from narwhal.engine.exchange import Exchange, Head
from narwhal.engine.feed import EventFeed
from narwhal.engine.refusal import refusal
from narwhal.engine.sse import is_event_stream
from narwhal.engine.template import (
    KNOWN_TEXTS,
    LARGEST_CHUNK,
    ROOM,
    SIZE_LINES,
    Template,
    chunk_head,
    is_one_string,
)
from narwhal.errors import EngineError, EngineTimeout, StreamBroken
from narwhal.ports import EngineReply, StreamCall, StreamSink

if TYPE_CHECKING:
    from narwhal.engine.connection import Connection

_REFUSAL_LIMIT = 1 << 20
_LEARN_EVERY = 8
"""A template that does not match is replaced at most once in so many events."""
_BLANK = Template()
"""Fits nothing; shared by all legs that have learned nothing yet."""


class DecodeLeg(Exchange[None]):
    """Ends at the DONE event. Is the `LegFlow` of its sink."""

    __slots__ = (
        "_feed", "_first_due", "_first_output_s", "_learn_at", "_opened", "_paused", "_refusal",
        "_remake", "_silence_s", "_template", "_verbatim", "_write_chunk", "passed",
    )  # fmt: skip

    def __init__(
        self, call: StreamCall, sink: StreamSink, *, loop: asyncio.AbstractEventLoop, limit: int
    ) -> None:
        super().__init__(call.call, loop)
        self._remake = (call, sink, limit)
        self._feed = EventFeed(sink, call.call.iid, limit=limit, decode_all=call.decode_events)
        self._silence_s = call.silence_s
        self._first_output_s = call.first_output_s
        self._opened = False
        self._paused = False
        self._refusal = bytearray()
        self.passed = 0
        self._write_chunk: Callable[[bytes], None] | None = None
        self._template = _BLANK
        self._learn_at = 0
        self._verbatim = False
        """The next read may go to `_write_chunk` if it proves to be one plain event."""

    def again(self) -> Self:
        call, sink, limit = self._remake
        fresh = type(self)(call, sink, loop=self.loop, limit=limit)
        fresh.total_due = self.total_due
        return fresh

    # --- told by the connection ---

    def attach(self, connection: Connection) -> None:
        super().attach(connection)
        self._first_due = self.last_read_at + self._first_output_s

    def take_chunk(self, chunk: bytes) -> bool:
        """One plain event that fills one chunk, proved to the byte, goes on without being parsed.

        The hot path of the router: see the counted test before adding anything here.
        """
        size = len(chunk)
        if not self._verbatim or size > LARGEST_CHUNK:
            return False
        template = self._template
        text = (
            chunk.removeprefix(SIZE_LINES[size]).removeprefix(template.prefix).removesuffix(template.suffix)
        )
        if len(text) == ROOM[size] - template.fixed and (text in KNOWN_TEXTS or is_one_string(text)):
            self.last_read_at = self.loop.time()
            self.passed += 1
            self._write_chunk(chunk)  # type: ignore[misc]
            return True
        return self._take_unlike(chunk)

    def _take_unlike(self, chunk: bytes) -> bool:
        """A chunk that the template does not prove: by the general search, and perhaps a new template."""
        head = chunk_head(chunk)
        event = chunk[head:-2]
        if not head or not is_plain(event):
            return False
        if self.passed >= self._learn_at:
            self._template = Template.of(event) or self._template
            self._learn_at = self.passed + _LEARN_EVERY
        self.last_read_at = self.loop.time()
        self.passed += 1
        self._write_chunk(chunk)  # type: ignore[misc]
        return True

    def on_head(self, head: Head) -> None:
        self.head = head
        self._opened = head.status == 200 and is_event_stream(head.headers)
        if self._opened:
            self._feed.open(self)

    def on_body(self, data: bytes) -> None:
        if self.done.done():
            return
        if not self._opened:
            self._refusal += data[: _REFUSAL_LIMIT - len(self._refusal)]
            return
        try:
            self._feed.feed(data)
        except StreamBroken as error:
            self.fail(error)
        if self._feed.done:
            self._end_well()
        self._verbatim = self._write_chunk is not None and self._feed.may_pass and not self.done.done()

    def on_complete(self) -> None:
        if self.done.done():
            return
        if not self._opened:
            self._end(self._refused())
            return
        try:
            self._feed.end()
        except StreamBroken as error:
            self._end(error)
        else:
            self._end_well()

    def detach(self) -> None:
        """No cycle outlives the leg: its sink may hold it as its flow."""
        super().detach()
        self._feed.close()
        if not self.may_repeat:
            del self._remake
        self._write_chunk = None
        self._verbatim = False

    def _end_well(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
            self.resume()

    def _refused(self) -> EngineError:
        assert self.head is not None
        reply = EngineReply(self.head.status, self.head.headers, bytes(self._refusal))
        if self.head.status == 200:
            return StreamBroken("a 200 that is no event stream", iid=self.call.iid, kind="malformed")
        return refusal(reply, self.call.iid)

    # --- LegFlow ---

    def pause(self) -> None:
        if not self._paused and not self.done.done() and self.connection is not None:
            self._paused = True
            self.connection.pause_reading()

    def resume(self) -> None:
        if self._paused and self.connection is not None:
            self._paused = False
            self.last_read_at = self.loop.time()
            self.connection.resume_reading()

    def pass_chunks(self, write: Callable[[bytes], None]) -> None:
        self._write_chunk = write

    # --- deadlines ---

    def next_due(self) -> float | None:
        """Looks in time for silence also before the first output, which nobody tells the wheel of."""
        dues = [self.total_due] if self.total_due is not None else []
        if not self._feed.output_seen:
            dues.append(self._first_due)
        if self._silence_s > 0:
            counting = self._feed.output_seen and not self._paused
            dues.append((self.last_read_at if counting else self.loop.time()) + self._silence_s)
        return min(dues, default=None)

    def look(self, now: float) -> float | None:
        if not self.done.done():
            if not self._feed.output_seen and now >= self._first_due:
                self._time_out("first_token", "no first token in time")
            elif self._silent(now):
                self._time_out("silence", f"no data for {self._silence_s} s")
        return super().look(now)

    def _silent(self, now: float) -> bool:
        waiting = self._feed.output_seen and self._silence_s > 0 and not self._paused
        return waiting and now >= self.last_read_at + self._silence_s

    def _time_out(self, kind: str, message: str) -> None:
        self.fail(EngineTimeout(message, iid=self.call.iid, kind=kind))
