"""engine/stream.py: what counts as a sign of life of a decode leg. The loop's time is the test's."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from narwhal.engine.connection import Connection
from narwhal.engine.stream import DecodeLeg
from narwhal.engine.wheel import never
from narwhal.errors import EngineTimeout
from narwhal.model.engine import Leg
from narwhal.ports import EngineCall, StreamCall
from tests.support.scripted import HEAD, chunk
from tests.unit.engine.test_events import completion, sse

LIMIT_S = 10.0
CALL = EngineCall("e0", "POST", "/v1/completions", Leg.DECODE, "r")
TOKEN = sse(completion(" the"))


class Loop:
    """As much of a loop as a leg asks for."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()


class Transport:
    def __init__(self) -> None:
        self.protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Sink:
    """Takes everything. `passes`: plain frames go past it, as they do with a streaming client."""

    def __init__(self, *, passes: bool) -> None:
        self.flow: Any = None
        self._passes = passes

    def on_open(self, flow: Any) -> None:
        self.flow = flow
        if self._passes:
            flow.pass_chunks(lambda data: None)

    def on_plain(self, data: bytes, events: int) -> None: ...

    def on_events(self, events: Any) -> None: ...


class Rig:
    """A leg whose first token has come."""

    def __init__(self, *, passes: bool, decodes: bool = False) -> None:
        self.loop = Loop()
        self.transport = Transport()
        self.sink = Sink(passes=passes)
        connection = Connection("e0", lambda _: None)
        self.transport.set_protocol(connection)
        connection.connection_made(cast(Any, self.transport))
        call = StreamCall(CALL, first_output_s=5.0, silence_s=LIMIT_S, decode_events=decodes)
        self.leg = DecodeLeg(call, self.sink, loop=cast(Any, self.loop), limit=1 << 20)
        connection.send(self.leg, b"request")
        self.read(HEAD + chunk(TOKEN))

    def read(self, data: bytes) -> None:
        self.transport.protocol.data_received(data)

    def after(self, seconds: float) -> BaseException | None:
        """How the leg has ended so many seconds later; the wheel looks as often as it is told to."""
        until = self.loop.now + seconds
        while self.loop.now < until:
            self.loop.now = min(until, self.loop.now + LIMIT_S / 20)
            self.leg.look(self.loop.now, never)
        return self.leg.done.exception() if self.leg.done.done() else None


WAYS = pytest.mark.parametrize(
    "way", [{"passes": False}, {"passes": True}, {"passes": False, "decodes": True}], ids=str
)
NOTHING = {
    "comments": [chunk(b": ping\n\n")],
    "comments with CR": [chunk(b": ping\r\n\r\n")],
    "blank lines": [chunk(b"\n")],
    "events without data": [chunk(b"event: ping\nid: 7\n\n")],
    "events with empty data": [chunk(b"data:\n\n")],
    "an event that never ends": [chunk(b'data: {"id":"'), *[chunk(b"x")] * 100],
    "a chunk that never ends": [b'fff\r\ndata: {"id":"', *[b"x"] * 100],
    "half a size line": [b"0", *[b"0"] * 100],
}


@WAYS
@pytest.mark.parametrize("trickle", NOTHING.values(), ids=NOTHING)
async def test_what_tells_nothing_is_silence(trickle: list[bytes], way: dict[str, bool]) -> None:
    rig = Rig(**way)
    assert rig.after(6.0) is None
    rig.read(chunk(TOKEN))
    for index in range(9):
        rig.read(trickle[min(index, len(trickle) - 1)])
        assert rig.after(1.0) is None
    rig.read(trickle[-1])
    ended = rig.after(2.0)
    assert isinstance(ended, EngineTimeout)
    assert (ended.kind, ended.limit_s) == ("silence", LIMIT_S)


@WAYS
@pytest.mark.parametrize(
    "event",
    [
        TOKEN,
        sse(completion("")),
        sse({"id": "cmpl-1", "choices": []}),
        sse({"choices": [], "usage": {"completion_tokens": 1}}),
        sse(completion("", "stop")),
        b": ping\n\n" + TOKEN + b": ping\n\n",
        TOKEN.replace(b"\n", b"\r\n"),
    ],
    ids=repr,
)
async def test_a_whole_event_is_a_sign_of_life(event: bytes, way: dict[str, bool]) -> None:
    """Also one without a text: a tokenizer holds back half a character."""
    rig = Rig(**way)
    for _ in range(5):
        assert rig.after(9.0) is None
        rig.read(chunk(event))


@WAYS
async def test_an_event_in_pieces_is_one_when_it_is_whole(way: dict[str, bool]) -> None:
    rig = Rig(**way)
    for piece in (TOKEN[:9], TOKEN[9:20], TOKEN[20:]):
        assert rig.after(3.0) is None
        rig.read(chunk(piece))
    assert rig.after(9.0) is None
    assert isinstance(rig.after(2.0), EngineTimeout)


@WAYS
async def test_silence_begins_anew_when_a_slow_client_reads_again(way: dict[str, bool]) -> None:
    rig = Rig(**way)
    assert rig.after(9.0) is None
    rig.sink.flow.pause()
    assert rig.after(30.0) is None
    rig.sink.flow.resume()
    assert rig.after(9.0) is None
    assert isinstance(rig.after(2.0), EngineTimeout)
