"""One request being generated: a timer on the wheel that writes one token event each time it fires.

    submitted -> waiting -> running -> (KV pulled or prompt computed) -> tokens -> ended

It ends by its last token, the client's leaving, an error, a shutdown, or a fault on order.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Protocol

import orjson

from narwhal.sim.faults import Fault
from narwhal.sim.frames import Ending, Frames, whole_answer
from narwhal.sim.handoff import Side, descriptor, spoil
from narwhal.sim.http import Exchange
from narwhal.sim.request import GenerateRequest, error_document
from narwhal.sim.settings import SimSettings
from narwhal.sim.speech import Piece, Speech
from narwhal.sim.stats import Stats
from narwhal.sim.stream import EventStream
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

    def prompt_blocks(self, generation: Generation) -> tuple[int, ...]:
        """The part of its blocks that holds the prompt."""

    def retire(self, generation: Generation, *, hold: bool) -> None:
        """It is over: free its seat, and its blocks unless they are held for a consumer."""


class Generation(Timed):
    """One generating request on one engine."""

    __slots__ = (
        "_due",
        "_host",
        "_id",
        "_pieces",
        "_speech",
        "_stalled",
        "_stream",
        "blocks",
        "created",
        "exchange",
        "faults",
        "over",
        "produced",
        "request",
        "request_id",
    )  # fmt: skip

    def __init__(self, host: Host, exchange: Exchange, *, request: GenerateRequest) -> None:
        super().__init__()
        self.exchange, self.request, self.faults = exchange, request, exchange.faults
        rid = exchange.request.headers.get("x-request-id") or secrets.token_hex(16)
        self._host = host
        self._id = f"chatcmpl-{rid}" if request.chat else f"cmpl-{rid}"
        self.request_id = f"{self._id}{'' if request.chat else '-0'}-{secrets.token_hex(4)}"
        self.created = int(time.time())
        frames = Frames(request, id=self._id, model=host.settings.model, created=self.created)
        self._stream = EventStream(exchange, frames, chat=request.chat)
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
        return Speech(self.request, seed, natural_length=natural)

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
            self._stream.say(piece, position, ending=ending)
        else:
            self._pieces.append(piece)
        host.stats.frames += 1
        if ending is not None:
            self._complete(ending, now)
        else:
            self._due += self._interval_s() if self.faults else host.interval_s()
            host.wheel.add(self, self._due)

    def gone(self) -> None:
        """The client went away."""
        self._host.stats.aborted += 1
        self._leave(hold=False)

    def abandon(self) -> None:
        """The engine's memory is gone, and this with it; the connection is somebody else's to close."""
        self.cancel()
        self.over = True

    def shut_down(self) -> None:
        """SIGTERM: streams end with finish_reason abort and [DONE], plain requests answer what they have."""
        if self.over:
            return
        self._host.stats.failed += 1
        if self.request.stream:
            self._stream.cut(self.produced)
            self._leave(hold=False)
        else:
            self._answer(Ending("abort"))

    def break_off(self, message: str, code: int = 500, *, inside: bool = False) -> None:
        """End with an error: inside the 200 when the stream has begun or `inside`, else as a status."""
        if self.over:
            return
        self._host.stats.failed += 1
        error = orjson.dumps(error_document(message, "InternalServerError", code=code))
        self._send_error(error, 200 if inside and self.request.stream else code)
        self._leave(hold=False)

    def _interval_s(self) -> float:
        slow = self.faults.get("slow_tokens")
        return self._host.interval_s() * (1.0 if slow is None else float(slow["factor"]))

    # --- endings ------------------------------------------------------------------------------------

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
            self._stream.usage(self.produced)
        self._stream.end()
        # A streamed prefill gives nobody a descriptor, yet its blocks stay pinned for the lease.
        self._leave(hold=self.request.produces_kv)

    # --- whole answers ------------------------------------------------------------------------------

    def _answer(self, ending: Ending) -> None:
        self.exchange.reply(200, self._whole(ending))
        self._leave(hold=self.request.produces_kv and ending.finish_reason != "abort")

    def _whole(self, ending: Ending) -> bytes:
        head = {"created": self.created, "model": self._host.settings.model}
        document = whole_answer(self.request, self._pieces, ending=ending, id=self._id, head=head)
        if self.request.produces_kv and ending.finish_reason != "abort":
            del document["kv_transfer_params"]
            document |= self._descriptor()
        return orjson.dumps(document)

    def _descriptor(self) -> dict[str, Any]:
        blocks, tokens = self._host.prompt_blocks(self), self.request.prompt.count
        good = descriptor(self._host.side, self.request_id, blocks=blocks, tokens=tokens)
        fault = self.faults.get("handoff")
        return {"kv_transfer_params": good} if fault is None else spoil(good, fault["variant"])

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

    def _open(self) -> None:
        if self.request.stream:
            self._stream.open()

    def _half_an_answer(self) -> None:
        if self.request.stream:
            self._open()
            return
        body = self._whole(Ending("length"))
        self.exchange.send_raw(self.exchange.head(200, len(body)) + body[: len(body) // 2])

    def _error_in_200(self) -> None:
        error = error_document("simulated failure", "InternalServerError", code=500)
        self._send_error(orjson.dumps(error), 200)

    def _send_error(self, error: bytes, status: int) -> None:
        """Inside the stream where there is one, else as the answer."""
        if self.request.stream and (status == 200 or self.exchange.started):
            self._stream.error(error)
        else:
            self.exchange.reply(status, error)

    def _leave(self, *, hold: bool) -> None:
        self.cancel()
        if not self.over:
            self.over = True
            self._host.retire(self, hold=hold)
