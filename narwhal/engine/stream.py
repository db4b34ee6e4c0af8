"""The decode leg on one connection: reads in, whole events into a sink, in the read's own call.

A read that is exactly one plain event in one HTTP chunk goes on as it is, framing included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self

from narwhal.engine.exchange import Exchange, Head
from narwhal.engine.feed import EventFeed
from narwhal.engine.refusal import refusal
from narwhal.engine.sse import is_event_stream
from narwhal.engine.verbatim import Verbatim
from narwhal.engine.wheel import StoodStill, prolonged
from narwhal.errors import EngineError, EngineTimeout, StreamBroken
from narwhal.ports import EngineReply, StreamCall, StreamSink

if TYPE_CHECKING:
    from narwhal.engine.connection import Connection

_REFUSAL_LIMIT = 1 << 20
_GLANCES = 16
"""Looks per time of silence: reads that pass verbatim keep a count, not a time, so silence is noticed up
to a sixteenth late."""


class DecodeLeg(Exchange[None]):
    """Ends at the DONE event. Is the `LegFlow` of its sink."""

    __slots__ = (
        "_feed", "_first_due", "_first_output_s", "_heard_at", "_opened", "_passed", "_refusal", "_remake",
        "_seen", "_silence_s", "_verbatim", "paused", "pauses",
    )  # fmt: skip

    def __init__(
        self, call: StreamCall, sink: StreamSink, *, loop: asyncio.AbstractEventLoop, limit: int
    ) -> None:
        super().__init__(call.call, loop)
        self._remake = (call, sink, limit)
        self._feed = EventFeed(
            sink, call.call.iid, route=call.call.path, limit=limit, decode_all=call.decode_events
        )
        self._silence_s = call.silence_s
        self._first_output_s = call.first_output_s
        self._heard_at = self.last_read_at
        """Loop time from which silence counts: of the newest whole event, or of the end of a pause. Bytes
        alone are no sign of life: a front end writes comments before a core that stands still."""
        self._opened = False
        self.paused = False
        self.pauses = 0
        self._refusal = bytearray()
        self._verbatim: Verbatim | None = None
        """Takes the events that need not come here; None where nothing may pass."""
        self._passed = self._seen = 0
        """Of the events that passed, those before the last look. `_passed`: all, once it has ended."""

    def again(self) -> Self:
        call, sink, limit = self._remake
        fresh = type(self)(call, sink, loop=self.loop, limit=limit)
        fresh.total_due = self.total_due
        return fresh

    # --- told by the connection ---

    def attach(self, connection: Connection) -> None:
        super().attach(connection)
        self._first_due = self.last_read_at + self._first_output_s

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
            if self._feed.feed(data):
                self._heard_at = self.last_read_at
        except StreamBroken as error:
            self.fail(error)
        if self._feed.done:
            self._end_well()
        self.verbatim = self._verbatim if self._feed.may_pass and not self.done.done() else None

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
        self._passed = self.passed
        self.verbatim = self._verbatim = None

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
        if not self.paused and not self.done.done() and self.connection is not None:
            self.paused = True
            self.pauses += 1
            self.connection.pause_reading()

    def resume(self) -> None:
        if self.paused and self.connection is not None:
            self.paused = False
            self._heard_at = self.loop.time()
            self.connection.resume_reading()

    @property
    def passed(self) -> int:
        return self._passed if self._verbatim is None else self._verbatim.passed

    def pass_chunks(self, write: Callable[[bytes], None]) -> None:
        if self.connection is not None:
            self._verbatim = Verbatim(self.connection, write)

    # --- deadlines ---

    def next_due(self) -> float | None:
        """Looks in time for silence also before the first output, which nobody tells the wheel of."""
        dues = [self.total_due] if self.total_due is not None else []
        if not self._feed.output_seen:
            dues.append(self._first_due)
        if self._silence_s > 0:
            dues.append(self.loop.time() + self._silence_s / _GLANCES)
            if self._listening:
                dues.append(self._heard_at + self._silence_s)
        return min(dues, default=None)

    def look(self, now: float, stood_still_s: StoodStill) -> float | None:
        self._note_passed(now)
        first_s, silence_s = self._first_output_s, self._silence_s
        if not self.done.done():
            up = partial(prolonged, now=now, stood_still_s=stood_still_s)
            if not self._feed.output_seen and now >= up(self._first_due, first_s):
                self._time_out("first_token", "no first token in time", limit_s=first_s)
            elif self._listening and now >= up(self._heard_at + silence_s, silence_s):
                self._time_out("silence", f"no data for {silence_s} s", limit_s=silence_s)
        return super().look(now, stood_still_s)

    def _note_passed(self, now: float) -> None:
        if self.passed != self._seen:
            self._seen = self.passed
            self._heard_at = now

    @property
    def _listening(self) -> bool:
        """Silence counts now."""
        return self._feed.output_seen and self._silence_s > 0 and not self.paused

    def _time_out(self, kind: str, message: str, *, limit_s: float) -> None:
        self.fail(EngineTimeout(message, iid=self.call.iid, kind=kind, limit_s=limit_s))
