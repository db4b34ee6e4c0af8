"""engine/control.py: what the engines see of control calls, and that their pool is their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from narwhal.engine.control import LeanControl
from narwhal.errors import EngineTimeout, EngineUnreachable, PoolExhausted, StreamBroken
from tests.support.processes import LIVENESS_S
from tests.support.scripted import Line, Script, ScriptedEngine, answer, scripted_engine


def serve(script: Script, scenario: Callable[[LeanControl, ScriptedEngine], Awaitable[Any]]) -> None:
    async def main() -> None:
        async with scripted_engine(script) as engine:
            control = LeanControl(
                [engine.spec], connections=1, connect_timeout_s=5.0, api_key="key", stamp=lambda: "demo/3"
            )
            try:
                await scenario(control, engine)
            finally:
                await control.aclose()
            assert control.pool().busy == 0

    uvloop.run(main())


def test_a_probe_says_what_it_is_and_keeps_its_connection() -> None:
    heads: list[list[str]] = []

    async def script(line: Line) -> None:
        while True:
            head, _ = await line.request()
            heads.append(head.lower().split("\r\n"))
            await line.say(answer(503, b"busy"))

    async def scenario(control: LeanControl, engine: ScriptedEngine) -> None:
        for _ in range(3):
            reply = await control.get("e0", "/health", timeout_s=LIVENESS_S)
            assert (reply.status, reply.body) == (503, b"busy")
        assert len(engine.lines) == 1

    serve(script, scenario)
    assert heads[0][0] == "get /health http/1.1"
    for field in ("authorization: bearer key", "x-narwhal-leg: probe", "x-narwhal-epoch: demo/3"):
        assert field in heads[0]


def test_a_call_without_a_connection_blames_nobody() -> None:
    hung = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        hung.set()
        await asyncio.sleep(LIVENESS_S)

    async def scenario(control: LeanControl, engine: ScriptedEngine) -> None:
        first = asyncio.create_task(control.get("e0", "/health", timeout_s=LIVENESS_S))
        await hung.wait()
        with pytest.raises(PoolExhausted):
            await control.get("e0", "/health", timeout_s=0.05)
        first.cancel()
        await asyncio.wait({first})

    serve(script, scenario)


def test_an_engine_that_does_not_answer_in_time() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while True:  # drips: each read is in time, the whole is not
            await line.say(b"x")
            await asyncio.sleep(0.02)

    async def scenario(control: LeanControl, engine: ScriptedEngine) -> None:
        with pytest.raises(EngineTimeout):
            await control.get("e0", "/health", timeout_s=0.2)

    serve(script, scenario)


def test_an_engine_that_goes_away_and_one_that_says_too_much() -> None:
    async def script(line: Line) -> None:
        head, _ = await line.request()
        if "too-much" in head:
            await line.say(answer(200, b"x" * (9 << 20)))
        else:
            line.reset()

    async def scenario(control: LeanControl, engine: ScriptedEngine) -> None:
        with pytest.raises(EngineUnreachable):
            await control.get("e0", "/health", timeout_s=LIVENESS_S)
        with pytest.raises(StreamBroken, match="over"):
            await control.get("e0", "/too-much", timeout_s=LIVENESS_S)

    serve(script, scenario)
