"""A decode leg that was collected whole, judged by the rules that a relayed one lives under."""

from __future__ import annotations

from collections.abc import Sequence

from narwhal.engine.feed import EventFeed
from narwhal.engine.sse import is_event_stream
from narwhal.errors import StreamBroken
from narwhal.model.decoding import CUT_FINISH
from narwhal.model.request import Api
from narwhal.ports import EngineReply, EventKind, LegFlow, StreamEvent


def check_whole_stream(reply: EngineReply, iid: str) -> None:
    """Raises StreamBroken unless the answer is an event stream with output and a clean end: of completions,
    which is what probes ask for."""
    if not is_event_stream(reply.headers):
        raise StreamBroken("a 200 that is no event stream", iid=iid, kind="malformed")
    ending = _Ending(iid)
    feed = EventFeed(ending, iid, route=Api.COMPLETIONS, limit=len(reply.body), decode_all=True)
    feed.feed(reply.body)
    feed.end()
    if not ending.finished:
        raise StreamBroken("the stream ended without a finish reason", iid=iid, kind="early_end")


class _Ending:
    """`StreamSink` that keeps nothing but how the stream ended."""

    def __init__(self, iid: str) -> None:
        self._iid = iid
        self.finished = False

    def on_open(self, flow: LegFlow) -> None:
        """Everything has been read already."""

    def on_plain(self, data: bytes, events: int) -> None:
        """Every event is decoded here."""

    def on_events(self, events: Sequence[StreamEvent]) -> None:
        for event in events:
            if event.kind is EventKind.ERROR:
                raise StreamBroken("an error object in the stream", iid=self._iid, kind="error_object")
            if event.finish_reason in CUT_FINISH:
                message = f"finish reason {event.finish_reason!r}"
                raise StreamBroken(message, iid=self._iid, kind="bad_finish")
            self.finished = self.finished or event.kind is EventKind.FINISH
