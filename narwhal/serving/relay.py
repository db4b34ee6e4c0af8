"""What a streaming client sees of its decode leg.

Nothing before the first output: until then a failure still has its HTTP status. After that whole events
as the engine framed them, one write per read, less a usage event that the client did not ask for. An
error object, a bad finish reason and the `[DONE]` behind them are withheld: `fail` ends the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from narwhal.clock import Clock
from narwhal.errors import StreamBroken
from narwhal.model.decoding import CUT_FINISH
from narwhal.ports import ClientStream, EventKind, LegFlow, StreamEvent


class LegTally:
    """What one decode leg produced, whoever takes its events. Times are `Clock.now`."""

    __slots__ = (
        "_clock", "counted", "done", "finish_reason", "finished_at", "first_output_at", "flow", "on_first",
        "usage",
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counted = 0
        """Events with generated output that came to the sink."""
        self.flow: LegFlow | None = None
        self.usage: Mapping[str, Any] | None = None
        self.finish_reason: str | None = None
        self.first_output_at: float | None = None
        self.on_first: Callable[[], None] | None = None
        """Called once, at the first output; not of whoever holds this."""
        self.finished_at: float | None = None
        self.done = False

    def take(self, event: StreamEvent) -> StreamBroken | None:
        """Counts one decoded event; tells what is wrong with it, if anything is."""
        if event.usage is not None:
            self.usage = event.usage
        kind = event.kind
        if kind is EventKind.OUTPUT:
            self._output()
        elif kind is EventKind.FINISH:
            return self._finish(event.finish_reason)
        elif kind is EventKind.ERROR:
            return StreamBroken("error object inside the stream", kind="error_object")
        elif kind is EventKind.DONE:
            if self.finish_reason is None:
                return StreamBroken("[DONE] without a finish reason", kind="early_end")
            self.done = True
        return None

    @property
    def events(self) -> int:
        """All events with generated output."""
        return self.counted + (self.flow.passed if self.flow is not None else 0)

    @property
    def output_tokens(self) -> tuple[int, str]:
        """How many, and by what they were counted: the engine's `usage`, else `events`."""
        told = self._told("completion_tokens")
        return (told, "usage") if told else (self.events, "events")

    @property
    def input_tokens(self) -> int | None:
        """As the engine counted them, None when it did not tell."""
        return self._told("prompt_tokens") if self.usage is not None else None

    def _told(self, key: str) -> int:
        """0 where it is null or left out; of another type no event is let through."""
        return (self.usage or {}).get(key) or 0

    def _output(self) -> None:
        self.counted += 1
        if self.first_output_at is None:
            self.first_output_at = self._clock.now()
            if self.on_first is not None:
                self.on_first()

    def _finish(self, reason: str | None) -> StreamBroken | None:
        if reason in CUT_FINISH:
            return StreamBroken(f"finish reason {reason!r}", kind="bad_finish")
        self._output()
        self.finish_reason = reason
        self.finished_at = self._clock.now()
        return None


# Not frozen, like all that is made several times a request: a frozen one costs thrice as much to make.
@dataclass(slots=True)
class RelayPlan:
    """`headers` of the response, names in lower case; `include_usage` as the client asked.

    `on_first_output` is called once, when the first output is about to leave, `on_end` when the end of the
    whole answer is and the client is still there. `limit`: most bytes held
    until then (`serving.max_response_bytes`): a chat's role event may carry all token IDs of its prompt.
    """

    headers: Sequence[tuple[str, str]]
    include_usage: bool
    on_first_output: Callable[[], None]
    on_end: Callable[[], None]
    limit: int


class Relay:
    """`ports.StreamSink` for a streaming client; one per decode leg."""

    __slots__ = ("_client", "_early", "_plan", "tally")

    def __init__(self, client: ClientStream, plan: RelayPlan, *, clock: Clock) -> None:
        self.tally = LegTally(clock)
        self._client = client
        self._plan = plan
        self._early = bytearray()

    # --- ports.StreamSink ---

    def on_open(self, flow: LegFlow) -> None:
        self.tally.flow = flow

    def on_plain(self, data: bytes, events: int) -> None:
        self.tally.counted += events
        self._client.write(data)

    def on_events(self, events: Sequence[StreamEvent]) -> None:
        shown = bytearray()
        broken = None
        for event in events:
            broken = self.tally.take(event)
            if broken is not None:
                break
            if event.kind is not EventKind.USAGE or self._plan.include_usage:
                shown += event.raw
        self._show(bytes(shown))
        if broken is not None and self.tally.flow is not None:
            self.tally.flow.fail(broken)

    # --- towards the client ---

    def _show(self, data: bytes) -> None:
        if self.tally.first_output_at is None:
            self._keep(data)
        elif not self._client.started:
            self._begin(data)
        elif self.tally.done:
            self._note_end()
            self._client.finish(data)
        else:
            self._client.write(data)

    def _keep(self, data: bytes) -> None:
        """Role event and comments wait for the first output."""
        self._early += data
        if len(self._early) > self._plan.limit and self.tally.flow is not None:
            self.tally.flow.fail(
                StreamBroken(f"over {self._plan.limit} bytes before the first output", kind="too_large")
            )

    def _begin(self, data: bytes) -> None:
        flow = self.tally.flow
        assert flow is not None
        self._plan.on_first_output()
        whole = self.tally.done
        if whole:
            self._note_end()
        self._client.pace(on_pause=flow.pause, on_resume=flow.resume)
        self._client.start(200, self._plan.headers, data=bytes(self._early) + data, last=whole)
        self._early.clear()
        if not whole and self._client.chunk_writer is not None:
            flow.pass_chunks(self._client.chunk_writer)

    def _note_end(self) -> None:
        if not self._client.gone:
            self._plan.on_end()
