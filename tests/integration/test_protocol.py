"""api/protocol.py and api/client_stream.py over real sockets: framing, limits, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from narwhal.api.client_stream import AsgiStream, TransportStream, client_stream
from narwhal.api.protocol import HEAD_LIMIT, RouterProtocol
from tests.support.scripted import until
from tests.support.wire import Wire

HEADERS = [("content-type", "text/event-stream")]
EVENT = b'data: {"text":"x"}\n\n'


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class App:
    """An application with one behaviour a path. `called` counts requests that reached it."""

    called: int = 0
    gone: int = 0
    paused: int = 0
    resumed: int = 0
    kinds: list[type] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.called += 1
        if scope["path"] == "/early":
            async with client_stream(scope, receive, send) as stream:
                await self.sized(stream, b"")
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            body += message["body"]
            more = message["more_body"]
        if scope["path"] == "/names":
            body = json.dumps([name.decode() for name, _ in scope["headers"]]).encode()
        if scope["path"] in ("/echo", "/names"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
            return
        async with client_stream(scope, receive, send) as stream:
            self.kinds.append(type(stream))
            stream.watch(self.note_gone)
            await getattr(self, scope["path"][1:])(stream, body)

    def note_gone(self) -> None:
        self.gone += 1
        self.go_on.set()

    def note_pause(self) -> None:
        self.paused += 1
        self.go_on.clear()

    def note_resume(self) -> None:
        self.resumed += 1
        self.go_on.set()

    async def stream(self, stream: Any, body: bytes) -> None:
        stream.start(200, HEADERS, data=EVENT)
        stream.write(EVENT)
        if stream.chunk_writer is not None:
            stream.chunk_writer(framed(EVENT))
        else:
            stream.write(EVENT)
        await asyncio.sleep(0.01)
        stream.finish(body)

    async def sized(self, stream: Any, body: bytes) -> None:
        stream.start(200, [("content-length", str(len(EVENT)))], data=EVENT)
        stream.finish()

    async def hang(self, stream: Any, body: bytes) -> None:
        await self.go_on.wait()
        assert stream.gone

    async def half(self, stream: Any, body: bytes) -> None:
        stream.start(200, HEADERS, data=EVENT)
        await self.go_on.wait()
        stream.finish()

    async def flood(self, stream: Any, body: bytes) -> None:
        """Sixteen mebibytes, held back by the client's reading."""
        self.go_on.set()
        stream.start(200, HEADERS)
        stream.pace(on_pause=self.note_pause, on_resume=self.note_resume)
        for _ in range(256):
            await self.go_on.wait()
            if stream.gone:
                return
            stream.write(b"x" * 65536)
            await asyncio.sleep(0)
        stream.finish()


class Hasty(RouterProtocol):
    HEAD_TIMEOUT_S = 0.2


class Restless(RouterProtocol):
    """Keeps an idle connection for 0.2 s."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = 0.2  # type: ignore[assignment]


@asynccontextmanager
async def served(protocol: type[HttpToolsProtocol] = RouterProtocol) -> AsyncIterator[tuple[App, str]]:
    app = App()
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", access_log=False)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield app, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in tuple(state.connections):
            connection.transport.abort()
        await until(lambda: not state.connections and not state.tasks, "no connection and no task is left")


Scenario = Callable[[App, Wire], Awaitable[None]]


def play(scenario: Scenario, protocol: type[HttpToolsProtocol] = RouterProtocol) -> None:
    async def main() -> None:
        async with served(protocol) as (app, url):
            wire = await Wire.open(url)
            try:
                await scenario(app, wire)
            finally:
                wire.close()

    uvloop.run(main())


def post(path: str, body: bytes = b"", version: str = "1.1", *more: str) -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: x", f"content-length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


WHOLE = EVENT * 3 + b"data: [DONE]\n\n"


# --- framing and keep-alive ---


@pytest.mark.parametrize(
    ("protocol", "kind"), [(RouterProtocol, TransportStream), (HttpToolsProtocol, AsgiStream)]
)
def test_a_stream_is_the_same_over_the_transport_and_over_plain_asgi(
    protocol: type[HttpToolsProtocol], kind: type
) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        for _ in range(3):
            await wire.send(post("/stream", b"data: [DONE]\n\n"))
            answer = await wire.answer()
            assert (answer.status, answer.body, answer.complete) == (200, WHOLE, True)
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers["transfer-encoding"] == "chunked"
        assert set(app.kinds) == {kind}
        assert app.gone == 0

    play(scenario, protocol)


def test_raw_and_plain_answers_take_turns_on_one_connection() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        for _ in range(3):
            await wire.send(post("/echo", b"hello"))
            assert (await wire.answer()).body == b"hello"
            await wire.send(post("/stream", b"data: [DONE]\n\n"))
            assert (await wire.answer()).body == WHOLE

    play(scenario)


def test_one_event_is_one_chunk() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/stream", b"data: [DONE]\n\n"))
        assert (await wire.answer()).chunks == [EVENT, EVENT, EVENT, b"data: [DONE]\n\n"]

    play(scenario)


def test_a_given_length_is_no_chunking() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        for _ in range(2):
            await wire.send(post("/sized"))
            answer = await wire.answer()
            assert (answer.body, answer.headers["content-length"]) == (EVENT, str(len(EVENT)))
            assert "transfer-encoding" not in answer.headers

    play(scenario)


@pytest.mark.parametrize(("version", "more"), [("1.0", []), ("1.1", ["connection: close"])])
def test_a_client_that_wants_no_other_request_gets_a_close(version: str, more: list[str]) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/stream", b"data: [DONE]\n\n", version, *more))
        answer = await wire.answer()
        assert (answer.body, answer.headers["connection"]) == (WHOLE, "close")
        assert ("transfer-encoding" in answer.headers) is (version == "1.1")
        assert await wire.ended()

    play(scenario)


# --- pipelining ---


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/stream", b"1") + post("/echo", b"2") + post("/stream", b"3"))
        assert [(await wire.answer()).body for _ in range(3)] == [EVENT * 3 + b"1", b"2", EVENT * 3 + b"3"]

    play(scenario)


def test_a_request_that_comes_during_a_stream_waits_for_its_end() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/half"))
        first = await wire.head()
        await wire.chunk(first)
        whole = post("/echo", b"later" * 30_000)
        for at in range(0, len(whole), 50_000):
            await wire.send(whole[at : at + 50_000])
        await asyncio.sleep(0.05)
        assert app.called == 1
        app.go_on.set()
        assert (await wire.rest(first)).complete
        assert (await wire.answer()).body == b"later" * 30_000

    play(scenario)


# --- clients that go ---


@pytest.mark.parametrize("protocol", [RouterProtocol, HttpToolsProtocol])
@pytest.mark.parametrize("path", ["/hang", "/half"])
def test_a_client_that_resets_is_seen(path: str, protocol: type[HttpToolsProtocol]) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post(path, b"whole body"))
        await until(lambda: app.kinds, "the request is being served")
        wire.close()
        await until(lambda: app.gone == 1, "the end of the client is seen")

    play(scenario, protocol)


@pytest.mark.parametrize("path", ["/hang", "/half"])
def test_a_client_that_ends_its_side_is_gone(path: str) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post(path))
        await until(lambda: app.kinds, "the request is being served")
        wire.writer.write_eof()
        await until(lambda: app.gone == 1, "the end of the client is seen")

    play(scenario)


def test_a_client_that_goes_with_a_request_in_line_is_seen() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/hang") + post("/echo", b"never"))
        await until(lambda: app.kinds, "the first request is being served")
        wire.close()
        await until(lambda: app.gone == 1, "the end of the client is seen")

    play(scenario)


def test_a_client_that_goes_inside_its_body_is_seen() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/hang", b"x" * 100)[:-50])
        await until(lambda: app.called, "the request has been started")
        wire.close()
        await until(lambda: app.gone == 1, "the end of the client is seen")

    play(scenario)


def test_a_client_that_goes_after_its_answer_is_no_loss() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/stream"))
        await wire.answer()
        wire.close()
        await asyncio.sleep(0.05)
        assert app.gone == 0

    play(scenario)


# --- flow control ---


@pytest.mark.parametrize("protocol", [RouterProtocol, HttpToolsProtocol])
def test_a_slow_client_holds_the_writer_back_and_loses_nothing(protocol: type[HttpToolsProtocol]) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await wire.send(post("/flood"))
        await until(lambda: app.paused, "the writer is held back")
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await wire.answer()
        assert (len(answer.body), answer.complete) == (256 * 65536, True)
        assert app.resumed == app.paused

    play(scenario, protocol)


@pytest.mark.parametrize("protocol", [RouterProtocol, HttpToolsProtocol])
def test_a_slow_client_that_goes_is_seen(protocol: type[HttpToolsProtocol]) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await wire.send(post("/flood"))
        await until(lambda: app.paused, "the writer is held back")
        wire.close()
        await until(lambda: app.gone == 1, "the end of the client is seen")

    play(scenario, protocol)


# --- heads and bad requests ---


def large_heads() -> list[tuple[str, list[bytes]]]:
    line = b"x-filler: " + b"y" * 990 + b"\r\n"
    many = b"POST /echo HTTP/1.1\r\n" + line * 80 + b"\r\n"
    one = b"POST /echo HTTP/1.1\r\nx-filler: " + b"y" * 3_000_000
    url = b"POST /" + b"u" * 100_000 + b" HTTP/1.1\r\n\r\n"
    return [
        ("many headers, one packet", [many]),
        ("many headers, many packets", [many[at : at + 8192] for at in range(0, len(many), 8192)]),
        ("one endless header", [one[at : at + 65536] for at in range(0, len(one), 65536)]),
        ("long path", [url]),
    ]


@pytest.mark.parametrize("packets", [p for _, p in large_heads()], ids=[name for name, _ in large_heads()])
def test_a_head_over_the_limit_is_refused_before_a_task_is_made(packets: list[bytes]) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        for packet in packets:
            try:
                await wire.send(packet)
            except OSError:
                break
            await asyncio.sleep(0.002)
        answer = await wire.answer()
        assert answer.status == 431
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert await wire.ended()
        assert app.called == 0

    play(scenario)


def test_a_head_below_the_limit_passes_with_a_large_body() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        filler = "x-filler: " + "y" * (HEAD_LIMIT - 200)
        await wire.send(post("/echo", b"z" * 500_000, "1.1", filler))
        assert len((await wire.answer()).body) == 500_000

    play(scenario)


BODYLESS = {
    "trailers": b"3\r\nabc\r\n0\r\n" + b"x-filler: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 20_000,
    "one endless trailer": b"3\r\nabc\r\n0\r\nx-filler: " + b"y" * 800_000,
    "a chunk extension": b"3;" + b"y" * 800_000,
}
CHUNKED = "transfer-encoding: chunked"


@pytest.mark.parametrize("flood", BODYLESS.values(), ids=BODYLESS)
def test_bytes_that_bring_no_body_are_limited_like_a_head(flood: bytes) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(f"POST /echo HTTP/1.1\r\nhost: x\r\n{CHUNKED}\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            await wire.send(flood)
        assert (await wire.answer()).status == 431
        assert await wire.ended()
        assert app.gone == 1

    play(scenario)


def test_trailers_without_end_behind_an_answer_close_the_connection() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(f"POST /early HTTP/1.1\r\nhost: x\r\n{CHUNKED}\r\n\r\n".encode())
        assert (await wire.answer()).body == EVENT
        with contextlib.suppress(OSError):
            await wire.send(BODYLESS["trailers"])
        assert await wire.ended()

    play(scenario)


def test_trailers_are_read_and_are_no_headers() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        head = f"POST /names HTTP/1.1\r\nhost: x\r\n{CHUNKED}\r\n\r\n"
        await wire.send(head.encode() + b"3\r\nabc\r\n0\r\nx-request-id: forged\r\n\r\n")
        assert json.loads((await wire.answer()).body) == ["host", "transfer-encoding"]
        await wire.send(post("/echo", b"again"))
        assert (await wire.answer()).body == b"again"

    play(scenario)


@pytest.mark.parametrize("more", [b"y", b"y" * 9], ids=["a part", "the rest"])
def test_a_body_that_comes_behind_its_answer_does_not_keep_the_connection_for_ever(more: bytes) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/early", b"x" * 10)[:-9])
        assert (await wire.answer()).body == EVENT
        await wire.send(more)
        async with asyncio.timeout(30):
            assert await wire.ended()

    play(scenario, Restless)


@pytest.mark.parametrize("begun", [b"", b"POST /echo HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_is_not_complete_in_time_is_closed(begun: bytes) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(begun)
        assert await wire.ended()
        assert app.called == 0

    play(scenario, Hasty)


def test_a_later_head_that_is_not_complete_in_time_is_closed_too() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/echo", b"whole in one read"))
        await wire.answer()
        await wire.send(b"POST /echo HTTP/1.1\r\nhost: x\r\n")
        async with asyncio.timeout(30):
            assert await wire.ended()

    play(scenario, Hasty)


def test_the_time_of_rest_counts_from_the_last_answer() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        for _ in range(4):
            await wire.send(post("/echo", b"again"))
            assert (await wire.answer()).body == b"again"
            await asyncio.sleep(0.08)
        async with asyncio.timeout(30):
            assert await wire.ended()

    play(scenario, Restless)


def test_the_time_of_rest_does_not_run_during_a_stream() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/echo", b"first"))
        await wire.answer()
        await wire.send(post("/half"))
        first = await wire.head()
        await asyncio.sleep(0.5)
        app.go_on.set()
        assert (await wire.rest(first)).complete
        async with asyncio.timeout(30):
            assert await wire.ended()

    play(scenario, Restless)


def test_the_time_for_a_head_does_not_run_during_a_stream() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/half"))
        first = await wire.head()
        await asyncio.sleep(0.5)
        app.go_on.set()
        assert (await wire.rest(first)).complete
        await asyncio.sleep(0.5)
        await wire.send(post("/echo", b"again"))
        assert (await wire.answer()).body == b"again"

    play(scenario, Hasty)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST /echo HTTP/9.9\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"POST /echo HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_gets_our_envelope_and_a_close(request_bytes: bytes) -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(request_bytes)
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert await wire.ended()

    play(scenario)


def test_nonsense_behind_a_request_does_not_spoil_its_answer() -> None:
    async def scenario(app: App, wire: Wire) -> None:
        await wire.send(post("/half"))
        first = await wire.head()
        await wire.send(b"\x00\x01 nonsense\r\n\r\n")
        await asyncio.sleep(0.05)
        app.go_on.set()
        assert (await wire.rest(first)).complete
        assert (await wire.answer()).status == 400
        assert await wire.ended()

    play(scenario)
