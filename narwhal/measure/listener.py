"""Ears for one decode leg: when tokens came, what they said, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from narwhal.errors import StreamBroken
from narwhal.ports import EventKind, LegFlow, StreamEvent

_CUT = ("abort", "error")
_MESSAGE_CHARS = 300
_TOKENS = frozenset((EventKind.OUTPUT, EventKind.FINISH))


class Listener:
    """`StreamSink`. `ticks`: the time (of `now`) of each output event; one event is one token as a rule.

    `heard` is called after each read that brought output, with the number of ticks before it.
    `reads_text` False leaves plain events undecoded: `text` is then not whole. `completion_tokens` and
    `prompt_tokens` are the engine's own counts, None until it told them.
    """

    def __init__(
        self,
        iid: str,
        now: Callable[[], float],
        *,
        heard: Callable[[int], None] | None = None,
        reads_text: bool = True,
    ) -> None:
        self.ticks: list[float] = []
        self.text = ""
        self.reads_text = reads_text
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self._iid = iid
        self._heard = heard
        self._now = now
        self._flow: LegFlow | None = None

    def on_open(self, flow: LegFlow) -> None:
        self._flow = flow

    def on_plain(self, data: bytes, events: int) -> None:
        self._took(events)

    def on_events(self, events: Sequence[StreamEvent]) -> None:
        tokens = 0
        for event in events:
            if event.kind is EventKind.ERROR:
                self._fail(f"an error object in the stream{_told(event)}", "error_object")
                return
            if event.finish_reason in _CUT:
                self._fail(f"finish reason {event.finish_reason!r}", "bad_finish")
                return
            self.finish_reason = event.finish_reason or self.finish_reason
            self._count(event)
            if event.kind in _TOKENS:
                tokens += 1
                self.text += _text(event)
        self._took(tokens)

    def _took(self, events: int) -> None:
        if events:
            before = len(self.ticks)
            self.ticks += [self._now()] * events
            if self._heard is not None:
                self._heard(before)

    def _count(self, event: StreamEvent) -> None:
        if event.usage is not None:
            self.prompt_tokens = _count_of(event.usage.get("prompt_tokens"))
            self.completion_tokens = _count_of(event.usage.get("completion_tokens"))

    def _fail(self, message: str, kind: str) -> None:
        if self._flow is not None:
            self._flow.fail(StreamBroken(message, iid=self._iid, kind=kind))


def _told(event: StreamEvent) -> str:
    """The engine's own message, for whoever has to mend it."""
    error = (event.document or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return f": {message[:_MESSAGE_CHARS]}" if isinstance(message, str) else ""


def _text(event: StreamEvent) -> str:
    choices = (event.document or {}).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    text = choice.get("text") if isinstance(choice, dict) else None
    return text if isinstance(text, str) else ""


def _count_of(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
