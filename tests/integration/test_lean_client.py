"""engine/client.py beyond its port: reuse of connections, idle sockets that the engine closed, TLS, IPv6."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from narwhal.engine.client import LeanClient
from narwhal.errors import EngineError, EngineTimeout, EngineUnreachable, StreamBroken
from narwhal.model.engine import EngineSpec
from tests.contract.test_engine_client import CALL, GOOD, SETTINGS, STREAM, Sink, event, stream_of
from tests.support.scripted import (
    END,
    HEAD,
    Line,
    Script,
    ScriptedEngine,
    answer,
    chunk,
    scripted_engine,
    until,
)

TLS = Path(__file__).resolve().parents[1] / "support" / "tls"


def serve(script: Script, scenario: Callable[[LeanClient, ScriptedEngine], Awaitable[Any]]) -> None:
    async def main() -> None:
        async with scripted_engine(script) as engine:
            client = LeanClient([engine.spec], SETTINGS)
            try:
                await scenario(client, engine)
            finally:
                await client.aclose()
                await until(lambda: client.connections == 0, "every socket is closed")
            assert client.pool().busy == 0

    uvloop.run(main())


async def answers(line: Line) -> None:
    while True:
        await line.request()
        await line.say(answer(200, b"{}"))


def test_one_connection_carries_one_exchange_after_another() -> None:
    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        for _ in range(5):
            await client.fetch(CALL)
        assert len(engine.lines) == 1

    serve(answers, scenario)


def test_streams_and_fetches_share_connections() -> None:
    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        for raw in (True, False, True):
            await client.stream(STREAM, Sink(raw=raw))
            await until(lambda: client.idle_connections == 1, "the stream's response has ended")
        assert len(engine.lines) == 1

    serve(stream_of(*GOOD), scenario)


def closes_after(first: int, *, with_reset: bool) -> Script:
    """Connection 0 answers `first` requests and ends at the next one, unanswered; others answer all."""

    async def script(line: Line) -> None:
        served = 0
        while True:
            await line.request()
            if line.number == 0 and served == first:
                line.reset() if with_reset else line.writer.close()
                return
            served += 1
            await line.say(answer(200, b"{}"))

    return script


@pytest.mark.parametrize("with_reset", [True, False], ids=["reset", "end of file"])
def test_an_idle_socket_that_the_engine_closes_under_a_request_is_no_failure(with_reset: bool) -> None:
    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        await client.fetch(CALL)
        assert (await client.fetch(CALL)).status == 200
        assert len(engine.lines) == 2, "once more, on a fresh connection"

    serve(closes_after(1, with_reset=with_reset), scenario)


def test_a_stream_on_a_closed_idle_socket_is_opened_once_more() -> None:
    async def script(line: Line) -> None:
        await line.request()
        if line.number == 0:
            await line.say(answer(200, b"{}"))
            await line.request()
            line.reset()
            return
        await line.say(HEAD + b"".join(map(chunk, GOOD)) + END)

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        await client.fetch(CALL)
        sink = Sink()
        await client.stream(STREAM, sink)
        assert sink.data == b"".join(GOOD)

    serve(script, scenario)


def test_the_second_sending_asks_for_its_permit_again() -> None:
    asked: list[int] = []

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        await client.fetch(CALL)
        await client.fetch(replace(CALL, permit=lambda: asked.append(1)))
        assert asked == [1, 1]

    serve(closes_after(1, with_reset=True), scenario)


def test_only_once() -> None:
    async def script(line: Line) -> None:
        if line.number == 0:
            await line.request()
            await line.say(answer(200, b"{}"))
        await line.request()
        line.reset()

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        await client.fetch(CALL)
        with pytest.raises(EngineUnreachable):
            await client.fetch(CALL)
        assert len(engine.lines) == 2

    serve(script, scenario)


def test_a_request_that_saw_a_first_byte_is_not_sent_again() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(answer(200, b"{}"))
        await line.request()
        await line.say(b"HTTP/1.1 200")
        await asyncio.sleep(0.02)
        line.reset()

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        await client.fetch(CALL)
        with pytest.raises(EngineError):
            await client.fetch(CALL)
        assert len(engine.lines) == 1

    serve(script, scenario)


@pytest.mark.parametrize(
    "more",
    [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b"junk", b"HTTP/1.1 200 OK\r\n"],
    ids=["another answer", "junk", "half a head"],
)
def test_a_connection_that_said_too_much_is_not_used_again(more: bytes) -> None:
    async def script(line: Line) -> None:
        while True:
            await line.request()
            await line.say(answer(200, b"{}") + more)

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        for _ in range(2):
            try:
                assert (await client.fetch(CALL)).body == b"{}"
            except StreamBroken:
                assert more == b"junk"
        assert len(engine.lines) == 2

    serve(script, scenario)


@pytest.mark.parametrize(
    "said", [b"\x15\x03\x01", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n"]
)
def test_what_is_no_http_is_malformed(said: bytes) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(said)

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        with pytest.raises(StreamBroken) as caught:
            await client.fetch(CALL)
        assert caught.value.kind == "malformed"
        await until(lambda: engine.gone == [0], "the connection is closed")

    serve(script, scenario)


def test_an_endless_head_is_broken_off() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(b"HTTP/1.1 200 OK\r\n")
        for _ in range(400):
            await line.say(b"x-filler: " + b"y" * 1000 + b"\r\n")

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        with pytest.raises(EngineUnreachable):
            await client.fetch(CALL)

    serve(script, scenario)


@pytest.mark.parametrize("piece", [b"x-filler: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many", "one"])
def test_trailers_without_end_are_broken_off(piece: bytes) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        await line.say(b"x-filler: y" if piece[:1] == b"y" else piece)
        for _ in range(2000):
            await line.say(piece)

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        with pytest.raises(StreamBroken) as caught:
            await client.fetch(CALL)
        assert caught.value.kind == "too_large"

    serve(script, scenario)


def test_chunk_sizes_that_come_alone_are_no_excess() -> None:
    size, chunks = b"0" * 900 + b"1\r\n", 200

    async def script(line: Line) -> None:
        await line.request()
        await line.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(chunks):
            await line.say(size)
            await asyncio.sleep(0.001)
            await line.say(b"y\r\n")
            await asyncio.sleep(0.001)
        await line.say(b"0\r\n\r\n")

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        assert (await client.fetch(CALL)).body == b"y" * chunks

    serve(script, scenario)


def test_a_bug_in_a_sink_comes_out_as_itself() -> None:
    class Broken(Sink):
        def on_open(self, flow: Any) -> None:
            raise ZeroDivisionError("a bug")

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(ZeroDivisionError):
            await client.stream(STREAM, Broken())

    serve(stream_of(*GOOD), scenario)


def test_a_finished_leg_leaves_no_cycle() -> None:
    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        gc.disable()
        try:
            sink = Sink(raw=True)
            await client.stream(STREAM, sink)
            seen = weakref.ref(sink)
            del sink
            await asyncio.sleep(0)
            assert seen() is None
        finally:
            gc.enable()

    serve(stream_of(*GOOD), scenario)


def dripping(count: int) -> Script:
    """Plain events one by one, then nothing more."""

    async def script(line: Line) -> None:
        await line.request()
        await line.say(HEAD)
        for number in range(count):
            await line.say(chunk(event(f" {number}")))
            await asyncio.sleep(0.05)
        await asyncio.sleep(30)

    return script


def test_silence_behind_events_that_passed_verbatim_ends_the_leg() -> None:
    """They leave no time of their own: the wheel sees that their number grows, and that it stops."""

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        sink = Sink(raw=True)
        with pytest.raises(EngineTimeout) as caught:
            await client.stream(replace(STREAM, silence_s=0.3), sink)
        assert caught.value.kind == "silence"
        assert sink.flow is not None
        assert sink.flow.passed + len(sink.kinds) == 12, "none is cut short while events come"

    serve(dripping(12), scenario)


def test_events_of_an_https_engine_pass_verbatim_too(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "cert.pem"))

    async def script(line: Line) -> None:
        await line.request()
        await line.say(HEAD)
        for one in GOOD:
            await line.say(chunk(one))
            await asyncio.sleep(0.01)
        await line.say(END)
        await line.request()

    async def main() -> None:
        async with scripted_engine(script, tls=context) as engine:
            client = LeanClient([engine.spec], SETTINGS)
            sink = Sink(raw=True)
            await client.stream(STREAM, sink)
            assert sink.data == b"".join(GOOD)
            assert sink.flow is not None
            assert sink.flow.passed == 3
            await client.aclose()

    uvloop.run(main())


def test_https_engines_are_verified_against_the_given_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    async def main() -> None:
        async with scripted_engine(answers, tls=context) as engine:
            monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            stranger = LeanClient([engine.spec], SETTINGS)
            with pytest.raises(EngineUnreachable):
                await stranger.fetch(CALL)
            await stranger.aclose()
            monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "cert.pem"))
            client = LeanClient([engine.spec], SETTINGS)
            for _ in range(2):
                assert (await client.fetch(CALL)).body == b"{}"
            await client.aclose()

    uvloop.run(main())


def test_ipv6_engines_are_reached() -> None:
    async def main() -> None:
        async with scripted_engine(answers, host="::1") as engine:
            assert "[::1]" in engine.spec.url
            client = LeanClient([engine.spec], SETTINGS)
            assert (await client.fetch(CALL)).body == b"{}"
            await client.aclose()

    uvloop.run(main())


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def scenario(client: LeanClient, engine: ScriptedEngine) -> None:
        assert (await client.fetch(CALL)).status == 200

    serve(answers, scenario)


def test_idle_connections_make_room_for_other_engines() -> None:
    async def main() -> None:
        async with scripted_engine(answers, "e0") as one, scripted_engine(answers, "e1") as two:
            settings = replace(SETTINGS, max_connections=2)
            client = LeanClient([one.spec, EngineSpec("e1", two.spec.url)], settings)
            await asyncio.gather(client.fetch(CALL), client.fetch(CALL))
            await client.fetch(replace(CALL, iid="e1"))
            await until(lambda: client.connections <= 2, "sockets stay within the pool")
            await client.aclose()

    uvloop.run(main())
