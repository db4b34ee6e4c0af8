"""The counted test of performance.md: what one plain frame costs in Python calls and transport writes.

Counted, not timed: a frame must stay a handful of calls, whatever the machine does.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import uvloop

from narwhal.api.protocol import RouterProtocol
from narwhal.engine.connection import Connection
from narwhal.engine.stream import DecodeLeg
from narwhal.engine.verbatim import Verbatim
from narwhal.model.engine import Leg
from narwhal.model.request import Api
from narwhal.ports import EngineCall, StreamCall
from narwhal.serving.relay import Relay, RelayPlan
from tests.support.ticking import TickingClock
from tests.unit.engine.test_events import chat, completion, sse

PYTHON_CALLS = 1
"""`Verbatim.data_received`."""
C_CALLS = 4
"""Two lengths, a join; the transport that counts takes one for its write."""
FRAMES = 200


class CountingTransport:
    """The transport of either side: keeps writes, never blocks."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.protocol: Any = None
        self.pauses = 0
        self.on_write: Callable[[], None] = lambda: None

    def pause_reading(self) -> None:
        self.pauses += 1

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.on_write()

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Path:
    """The whole data path of one stream, from an engine's socket to a client's, less the sockets."""

    def __init__(self, route: Api = Api.COMPLETIONS) -> None:
        import uvicorn
        from uvicorn.server import ServerState

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.Event().wait()

        config = uvicorn.Config(app, http=RouterProtocol, ws="none", lifespan="off")
        config.load()
        loop = asyncio.get_running_loop()
        self.client = CountingTransport()
        self.protocol = RouterProtocol(config=config, server_state=ServerState(), app_state={})
        self.protocol.connection_made(self.client)  # type: ignore[arg-type]
        self.protocol.data_received(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n")
        stream = self.protocol._streams[0]
        plan = RelayPlan([("content-type", "text/event-stream")], False, lambda: None, lambda: None, 1 << 20)
        self.relay = Relay(stream, plan, clock=TickingClock())
        self.connection = Connection("e0", lambda _: None)
        self.engine = CountingTransport()
        self.engine.set_protocol(self.connection)
        self.connection.connection_made(self.engine)  # type: ignore[arg-type]
        call = EngineCall("e0", "POST", route, Leg.DECODE, "r")
        leg = DecodeLeg(
            StreamCall(call, first_output_s=9.0, silence_s=9.0), self.relay, loop=loop, limit=1 << 20
        )
        self.connection.send(leg, b"request")

    def read(self, data: bytes) -> None:
        """As uvloop would tell it."""
        self.engine.protocol.data_received(data)

    async def end(self) -> None:
        self.protocol.connection_lost(None)
        for task in self.protocol.tasks:
            task.cancel()
        await asyncio.gather(*self.protocol.tasks, return_exceptions=True)


def count_calls(path: Path, reads: list[bytes]) -> Counter[str]:
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            found[f"python {frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            found[f"c {arg.__name__}"] += 1

    sys.setprofile(profile)
    try:
        for read in reads:
            path.engine.protocol.data_received(read)
    finally:
        sys.setprofile(None)
    del found["c setprofile"]
    return found


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WORDS = (" the", "", " router", "中文", " a longer piece of text than the others")
STREAMS = {
    Api.COMPLETIONS: [sse(completion(word, usage=None)) for word in WORDS],
    Api.CHAT: [sse(chat({"content": word})) for word in WORDS],
}


@pytest.mark.parametrize("route", STREAMS)
def test_a_plain_frame_is_a_handful_of_calls_and_one_write(route: Api) -> None:
    async def main() -> None:
        path, events = Path(route), STREAMS[route]
        path.read(HEAD)
        for event in events * 2:
            path.read(framed(event))
        path.client.writes.clear()
        reads = [framed(events[index % len(events)]) for index in range(FRAMES)]
        found = count_calls(path, reads)
        assert type(path.engine.protocol) is Verbatim
        assert path.client.writes == reads, "each frame is one write, as the engine framed it"
        assert path.relay.tally.events == FRAMES + 2 * len(events)
        own = {name: count for name, count in found.items() if "CountingTransport" not in name}
        python = sum(count for name, count in own.items() if name.startswith("python"))
        assert python <= PYTHON_CALLS * FRAMES, found
        in_c = sum(count for name, count in own.items() if name.startswith("c "))
        assert in_c <= C_CALLS * FRAMES, found
        await path.end()

    uvloop.run(main())


def test_events_that_come_together_are_one_write_a_read() -> None:
    async def main() -> None:
        path = Path()
        events = STREAMS[Api.COMPLETIONS]
        path.read(HEAD + framed(events[0]))
        path.client.writes.clear()
        for _ in range(FRAMES):
            path.read(b"".join(map(framed, events)))
        assert path.client.writes == [framed(b"".join(events))] * FRAMES
        await path.end()

    uvloop.run(main())


def test_an_answer_that_came_in_one_read_is_one_write() -> None:
    """Head, events and the end of the chunks: the client wakes once for it."""

    async def main() -> None:
        path = Path()
        last = sse(completion(" sea", "length")), b"data: [DONE]\n\n"
        path.read(HEAD + framed(b"".join(last)) + b"0\r\n\r\n")
        assert len(path.client.writes) == 1
        head, _, body = path.client.writes[0].partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert body == framed(b"".join(last)) + b"0\r\n\r\n"
        await path.end()

    uvloop.run(main())


@pytest.mark.parametrize("whole", [True, False], ids=["in one read", "behind a first event"])
def test_the_last_write_paces_nobody(whole: bool) -> None:
    """It may stand above the client's high-water mark: the engine's connection is needed again."""

    async def main() -> None:
        path, event = Path(), framed(sse(completion(" sea")))
        end = framed(sse(completion(" sea", "length")) + b"data: [DONE]\n\n") + b"0\r\n\r\n"
        path.read(HEAD if whole else HEAD + event)
        paused = path.engine.pauses
        path.client.on_write = path.protocol.pause_writing
        path.read(end)
        assert path.engine.pauses == paused
        await path.end()

    uvloop.run(main())
