"""From the body bytes of a decode stream to its sink: split, recognise, hand on.

Plain events (a choice, finish reason null, no error) pass undecoded. A cheap search *selects*: whatever
it does not recognise as plain is decoded, so model text can only make us decode more than we need.
"""

from __future__ import annotations

from narwhal.engine.events import decode_event, is_plain
from narwhal.engine.sse import SseSplitter
from narwhal.errors import StreamBroken
from narwhal.ports import EventKind, LegFlow, StreamEvent, StreamSink

_OUTPUT = frozenset((EventKind.OUTPUT, EventKind.FINISH))


class EventFeed:
    """One stream. `output_seen`: generated output has been handed on; `done`: DONE has.

    `route` is the path that was asked, `limit` the most bytes of one event, `decode_all` says that nothing
    passes undecoded.
    """

    __slots__ = ("_decode_all", "_iid", "_route", "_sink", "_splitter", "done", "output_seen")

    def __init__(self, sink: StreamSink, iid: str, *, route: str, limit: int, decode_all: bool) -> None:
        self._sink = sink
        self._iid = iid
        self._route = route
        self._splitter = SseSplitter(limit)
        self._decode_all = decode_all
        self.output_seen = False
        self.done = False

    @property
    def may_pass(self) -> bool:
        """Nothing is held and plain events pass undecoded: the next bytes begin an event."""
        return self.output_seen and not self._decode_all and not self.done and not self._splitter.held

    def open(self, flow: LegFlow) -> None:
        self._sink.on_open(flow)

    def close(self) -> None:
        """Lets go of the sink, which may hold the leg that holds this. Nothing may be fed any more."""
        del self._sink

    def feed(self, data: bytes) -> bool:
        """What one read brought; whether it completed an event that has data, whatever that says.

        Raises StreamBroken, after the events before the fault were handed on.
        """
        if self.done:
            return False
        try:
            events = self._splitter.feed(data)
        except StreamBroken as error:
            raise StreamBroken(str(error), iid=self._iid, kind=error.kind) from None
        return bool(events) and self._hand_on(events)

    def end(self) -> None:
        """The body has ended. Raises StreamBroken unless DONE came first."""
        if not self.done and (rest := self._splitter.flush()):
            self._hand_on(rest)
        if not self.done:
            raise StreamBroken("the stream ended without [DONE]", iid=self._iid, kind="early_end")

    def _hand_on(self, events: list[bytes]) -> bool:
        if self.output_seen and not self._decode_all and all(map(is_plain, events)):
            self._sink.on_plain(events[0] if len(events) == 1 else b"".join(events), len(events))
            return True
        decoded, fault = self._decode(events)
        if decoded:
            self._sink.on_events(decoded)
        if fault is not None:
            raise StreamBroken(f"event: {fault}", iid=self._iid, kind="malformed")
        return any(event.document is not None for event in decoded)

    def _decode(self, events: list[bytes]) -> tuple[list[StreamEvent], ValueError | None]:
        """Up to DONE or the first event that is no JSON object."""
        decoded: list[StreamEvent] = []
        for raw in events:
            try:
                event = decode_event(raw, self._route)
            except ValueError as error:
                return decoded, error
            decoded.append(event)
            if event.kind in _OUTPUT:
                self.output_seen = True
            elif event.kind is EventKind.DONE:
                self.done = True
                break
        return decoded, None
