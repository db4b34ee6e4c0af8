"""The event stream of one streaming answer: vLLM's framing, or what faults make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from narwhal.sim.faults import Fault
from narwhal.sim.frames import DONE, Ending, Frames, line_ends, over_several_lines
from narwhal.sim.http import Exchange
from narwhal.sim.speech import Piece


class EventStream:
    """Writes events to the exchange. The head leaves with the first of them, or by `open`."""

    __slots__ = ("_chat", "_exchange", "_frame", "_frames", "_padding")

    def __init__(self, exchange: Exchange, frames: Frames, *, chat: bool) -> None:
        faults = exchange.faults
        self._exchange = exchange
        self._frames = frames
        self._frame = _framing(faults)
        self._padding = int(faults["huge"]["bytes"]) if "huge" in faults else 0
        self._chat = chat

    def open(self) -> None:
        if not self._exchange.started:
            self._exchange.start()

    def say(self, piece: Piece, position: int, *, ending: Ending | None) -> None:
        """The event of one token; before the first one the head, and chat's role event."""
        if position == 0:
            self.open()
            opening = self._frames.opening()
            if opening is not None:
                self.send(opening)
        if self._padding:
            piece = _padded(piece, self._padding, chat=self._chat)
        self.send(self._frames.token(piece, position, ending=ending))

    def cut(self, position: int) -> None:
        """The end of a request that the engine aborts."""
        self.open()
        self.send(self._frames.cut(position))
        self.end()

    def usage(self, tokens: int) -> None:
        self.send(self._frames.usage(tokens))

    def error(self, document: bytes) -> None:
        """An error object inside the 200, and the end."""
        self.open()
        self.send(document)
        self.end()

    def send(self, event: bytes) -> None:
        self._exchange.send(self._frame(event))

    def end(self) -> None:
        self.send(DONE)
        self._exchange.end()


def _padded(piece: Piece, size: int, *, chat: bool) -> Piece:
    text = piece.text + "x" * size
    json = orjson.dumps(text)
    return Piece(piece.id, text, b'{"content":%b}' % json if chat else json)


def _framing(faults: Mapping[str, Fault]) -> Callable[[bytes], bytes]:
    """How one event becomes bytes: vLLM's way, or as the faults order."""
    end = b"\r\n" if "crlf" in faults else b"\r" if "cr" in faults else b"\n"
    lines = over_several_lines if "multi_line" in faults else line_ends
    if "comments" in faults:
        return lambda event: b": ping" + end + end + end + lines(event, end)
    if lines is line_ends and end == b"\n":
        return _plain
    return lambda event: lines(event, end)


def _plain(event: bytes) -> bytes:
    return b"data: %b\n\n" % event
