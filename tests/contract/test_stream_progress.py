"""ports.EngineClient.quiet_s: when did streams of an engine last bring bytes."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from narwhal.engine.client import LeanClient
from narwhal.engine.httpx_client import HttpxClient
from narwhal.ports import EngineClient
from tests.contract.test_engine_client import DONE, STREAM, Kind, Sink, event, serve
from tests.support.scripted import END, HEAD, Line, ScriptedEngine, chunk, until


@pytest.mark.parametrize("kind", [LeanClient, HttpxClient], ids=["lean", "httpx"])
@pytest.mark.parametrize("raw", [False, True], ids=["events", "verbatim"])
def test_it_knows_when_a_stream_last_brought_something(kind: Kind, raw: bool) -> None:
    silent_s = 0.4
    go_on, leave = asyncio.Event(), asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await line.say(HEAD)
        for data in (event(), event(), event("", "stop") + DONE):
            await go_on.wait()
            go_on.clear()
            await line.say(chunk(data))
        await line.say(END)
        await leave.wait()

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink(raw=raw)
        assert client.quiet_s("e0") == inf
        task = asyncio.ensure_future(client.stream(STREAM, sink))
        await until(lambda: sink.flow is not None, "the stream is open")
        assert client.quiet_s("e0") == inf, "a head is no output"
        for number in (1, 2):
            go_on.set()
            await until(lambda number=number: len(sink.data) == number * len(event()), "an event came")
            came_s = client.quiet_s("e0")
            assert client.quiet_s("e1") == inf
            await asyncio.sleep(silent_s)
            assert client.quiet_s("e0") >= came_s + silent_s / 2
        assert came_s < silent_s, "the second event began it anew"
        go_on.set()
        await task
        ended_s = client.quiet_s("e0")
        assert ended_s < silent_s, "it has just ended well"
        await asyncio.sleep(silent_s)
        assert client.quiet_s("e0") >= ended_s + silent_s / 2

    serve(kind, script, scenario)
