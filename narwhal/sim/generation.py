"""One request being generated: a timer on the wheel that writes one token event each time it fires.

    submitted -> waiting -> running -> (KV pulled or prompt computed) -> tokens -> ended

It ends by its last token, the client's leaving, an error, a shutdown, or a fault on order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from narwhal.sim.faults import Fault
from narwhal.sim.frames import DONE, Ending, Frames, line_ends, over_several_lines, whole_answer
from narwhal.sim.handoff import Side, descriptor, spoil
from narwhal.sim.http import Exchange
from narwhal.sim.request import GenerateRequest, error_document
from narwhal.sim.settings import SimSettings
from narwhal.sim.speech import Piece, Speech
from narwhal.sim.stats import Stats
from narwhal.sim.wheel import Timed, Wheel

_PAUSE_S = 0.005
_FAULTS_OF_THE_BODY = ("rst", "close", "stall", "error_in_200", "no_done")


class Host(Protocol):
    """What a generation needs of its engine."""

    settings: SimSettings
    wheel: Wheel
    stats: Stats

    @property
    def side(self) -> Side: ...

    def interval_s(self) -> float: ...

    def retire(self, generation: Generation, *, hold: bool) -> None:
        """It is over: free its seat, and its blocks unless they are held for a consumer."""


class Generation(Timed):
    """One generating request on one engine."""

    __slots__ = (
        "_due",
        "_frame",
        "_frames",
        "_host",
        "_id",
        "_pieces",
        "_speech",
        "_stalled",
        "blocks",
        "created",
        "exchange",
        "faults",
        "over",
        "produced",
        "request",
        "request_id",
    )  # fmt: skip

    def __init__(
        self, host: Host, exchange: Exchange, request: GenerateRequest, faults: Mapping[str, Fault]
    ) -> None:
        super().__init__()
        self.exchange, self.request, self.faults = exchange, request, faults
        rid = exchange.request.headers.get("x-request-id") or secrets.token_hex(16)
        self._host = host
        self._id = f"chatcmpl-{rid}" if request.chat else f"cmpl-{rid}"
        self.request_id = f"{self._id}{'' if request.chat else '-0'}-{secrets.token_hex(4)}"
        self.created = int(time.time())
        self._frames = Frames(request, id=self._id, model=host.settings.model, created=self.created)
        self._frame = _framing(faults)
        self._speech = self.speech(request.prompt.seed)
        self._pieces: list[Piece] = []
        self._due = 0.0
        self._stalled = False
        self.blocks: tuple[int, ...] = ()
        self.produced = 0
        self.over = False

    def speech(self, seed: int) -> Speech:
        """What will be said if the KV blocks hold the prompt of this seed."""
        natural = self._host.settings.natural_length
        return Speech(self.request, seed, natural, call_id=secrets.token_hex(16))

    @property
    def tokens_at_most(self) -> int:
        """Prompt and answer: what its blocks must hold."""
        length = self._speech.length
        answer = self.request.limit if length is None else min(self.request.limit, length)
        return self.request.prompt.count + answer

    # --- life ---------------------------------------------------------------------------------------

    def begin(self, first_at: float, speech: Speech | None = None) -> None:
        """Let the first token come at `first_at`; `speech` when the blocks hold something else."""
        if speech is not None:
            self._speech = speech
        slow = self.faults.get("slow_first_token")
        if slow is not None:
            self._open()
            first_at += slow["seconds"]
        self._due = first_at
        if "silent_first_token" in self.faults:
            self._open()
        else:
            self._host.wheel.add(self, first_at)

    def fire(self, now: float) -> None:
        """Say one token and wait for the next."""
        exchange, host = self.exchange, self._host
        if exchange.paused:
            self._due = now
            host.wheel.add(self, now + _PAUSE_S)
            return
        if self.faults and self.request.stream and self._interrupted(now):
            return
        position = self.produced
        piece = self._speech.piece(position)
        self.produced = position + 1
        ending = self._ending(piece)
        if self.request.stream:
            self._say(piece, position, ending)
        else:
            self._pieces.append(piece)
        host.stats.frames += 1
        if ending is not None:
            self._complete(ending, now)
        else:
            self._due += host.interval_s()
            host.wheel.add(self, self._due)

    def gone(self) -> None:
        """The client went away."""
        self._host.stats.aborted += 1
        self._leave(hold=False)

    def shut_down(self) -> None:
        """SIGTERM: streams end with finish_reason abort and [DONE], plain requests answer what they have."""
        if self.over:
            return
        self._host.stats.failed += 1
        if self.request.stream:
            self._open()
            self._send(self._frames.cut(self.produced))
            self._end_stream()
            self._leave(hold=False)
        else:
            self._answer(Ending("abort"))

    def break_off(self, message: str, code: int = 500, *, inside: bool = False) -> None:
        """End with an error: inside the 200 when the stream has begun or `inside`, else as a status."""
        if self.over:
            return
        self._host.stats.failed += 1
        error = error_document(message, "InternalServerError", code)
        if self.request.stream and (inside or self.exchange.started):
            self._open()
            self._send(orjson.dumps(error))
            self._end_stream()
        else:
            self.exchange.reply_json(code, error)
        self._leave(hold=False)

    # --- streams ------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self.request.stream and not self.exchange.started:
            self.exchange.start()

    def _say(self, piece: Piece, position: int, ending: Ending | None) -> None:
        if position == 0:
            self._open()
            opening = self._frames.opening()
            if opening is not None:
                self._send(opening)
        if "huge" in self.faults:
            piece = _padded(piece, self.faults["huge"]["bytes"], chat=self.request.chat)
        self._send(self._frames.token(piece, position, ending))

    def _send(self, event: bytes) -> None:
        self.exchange.send(self._frame(event))

    def _end_stream(self) -> None:
        self._send(DONE)
        self.exchange.end()

    def _ending(self, piece: Piece) -> Ending | None:
        """Whether this token is the last, and why."""
        abort = self.faults.get("abort") if self.faults else None
        natural = self._natural_ending(piece)
        if abort is not None and (natural is not None or self.produced >= abort["after"]):
            return Ending("abort")
        return natural

    def _natural_ending(self, piece: Piece) -> Ending | None:
        for text in self.request.stop:
            if text in piece.text:
                return Ending("stop", text)
        if self.produced == self._speech.length:
            return Ending(self._speech.finish_reason)
        return Ending("length") if self.produced >= self.request.limit else None

    def _complete(self, ending: Ending, now: float) -> None:
        if self.faults and self._interrupted(now, finished=True):
            return
        self._host.stats.completed += 1
        if not self.request.stream:
            self._answer(ending)
            return
        if self.request.include_usage:
            self._send(self._frames.usage(self.produced))
        self._end_stream()
        # A streamed prefill gives nobody a descriptor, yet its blocks stay pinned for the lease.
        self._leave(hold=self.request.produces_kv)

    # --- whole answers ------------------------------------------------------------------------------

    def _answer(self, ending: Ending) -> None:
        self.exchange.reply(200, self._whole(ending))
        self._leave(hold=self.request.produces_kv and ending.finish_reason != "abort")

    def _whole(self, ending: Ending) -> bytes:
        head = {"created": self.created, "model": self._host.settings.model}
        document = whole_answer(self.request, self._pieces, ending, id=self._id, head=head)
        if self.request.produces_kv and ending.finish_reason != "abort":
            good = descriptor(self._host.side, self.request_id, self.blocks, self.request.prompt.count)
            fault = self.faults.get("handoff")
            del document["kv_transfer_params"]
            document |= {"kv_transfer_params": good} if fault is None else spoil(good, fault["variant"])
        return orjson.dumps(document)

    # --- faults on order ----------------------------------------------------------------------------

    def _interrupted(self, now: float, *, finished: bool = False) -> bool:
        """Follow the fault that is due after this many tokens; True when nothing more is to be sent now."""
        for kind in _FAULTS_OF_THE_BODY:
            fault = self.faults.get(kind)
            if fault is not None and (finished or self.produced == fault["after"]):
                return self._follow(fault, now)
        return False

    def _follow(self, fault: Fault, now: float) -> bool:
        if fault.kind == "stall":
            return self._stall(fault, now)
        if fault.kind == "no_done" and not self.request.stream:
            return False
        self._host.stats.failed += 1
        if fault.kind == "error_in_200":
            self._error_in_200()
        elif fault.kind == "no_done":
            self._open()
            self.exchange.end()
        elif fault.kind == "close":
            self._half_an_answer()
            self.exchange.drop()
        else:
            self.exchange.reset()
        self._leave(hold=False)
        return True

    def _stall(self, fault: Fault, now: float) -> bool:
        if self._stalled:
            return False
        self._stalled = True
        self._half_an_answer()
        if fault["seconds"] is not None and self.request.stream:
            self._due = now + fault["seconds"]
            self._host.wheel.add(self, self._due)
        return True

    def _half_an_answer(self) -> None:
        if self.request.stream:
            self._open()
            return
        body = self._whole(Ending("length"))
        self.exchange.send_raw(self.exchange.head(200, len(body)) + body[: len(body) // 2])

    def _error_in_200(self) -> None:
        error = orjson.dumps(error_document("simulated failure", "InternalServerError", 500))
        if self.request.stream:
            self._open()
            self._send(error)
            self._end_stream()
        else:
            self.exchange.reply(200, error)

    def _leave(self, *, hold: bool) -> None:
        self.cancel()
        if not self.over:
            self.over = True
            self._host.retire(self, hold=hold)


def _padded(piece: Piece, size: int, *, chat: bool) -> Piece:
    text = piece.text + "x" * size
    json = orjson.dumps(text)
    return Piece(piece.id, text, b'{"content":%b}' % json if chat else json)


def _framing(faults: Mapping[str, Fault]) -> Callable[[bytes], bytes]:
    """How one event becomes bytes: vLLM's way, or as the faults order."""
    end = b"\r\n" if "crlf" in faults else b"\r" if "cr" in faults else b"\n"
    lines = over_several_lines if "multi_line" in faults else line_ends
    if "comments" in faults:
        return lambda event: b": ping" + end + end + lines(event, end) + end
    if lines is line_ends and end == b"\n":
        return _plain
    return lambda event: lines(event, end)


def _plain(event: bytes) -> bytes:
    return b"data: %b\n\n" % event
