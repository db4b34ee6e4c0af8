"""ports.ControlClient: the control pool and its in-memory twin do the same with the same engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from narwhal import fence
from narwhal.engine.control import LeanControl
from narwhal.engine.memory_control import Answering, ControlAsk, MemoryControl
from narwhal.errors import EngineTimeout, EngineUnreachable, PoolExhausted, StaleEpoch
from narwhal.model.engine import EngineSpec
from narwhal.ports import ControlClient, EngineReply
from tests.support.processes import LIVENESS_S
from tests.support.scripted import Line, answer, scripted_engine

Scenario = Callable[[ControlClient], Awaitable[Any]]
Play = Callable[[Answering, Scenario], None]
NOBODY = EngineSpec("e9", "http://127.0.0.1:1")


async def over_sockets(engine: Answering, scenario: Scenario) -> None:
    async def script(line: Line) -> None:
        while True:
            head, body = await line.request()
            first, *fields = head.strip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = dict(field.lower().split(": ", 1) for field in fields)
            try:
                reply = await engine(ControlAsk(method, path, headers, body))
            except ConnectionError:
                line.reset()
                return
            extra = [f"{name}: {value}" for name, value in reply.headers.items()]
            await line.say(answer(reply.status, reply.body, *extra))

    async with scripted_engine(script) as served:
        control = LeanControl(
            [served.spec, NOBODY],
            connections=2,
            connect_timeout_s=LIVENESS_S,
            api_key="key",
            stamp=lambda: "demo/3",
        )
        try:
            await scenario(control)
        finally:
            await control.aclose()
        assert control.pool().busy == control.pool().waiting == 0


async def in_memory(engine: Answering, scenario: Scenario) -> None:
    control = MemoryControl({"e0": engine}, connections=2, api_key="key", stamp=lambda: "demo/3")
    try:
        await scenario(control)
    finally:
        await control.aclose()


@pytest.fixture(params=(over_sockets, in_memory))
def play(request: pytest.FixtureRequest) -> Play:
    return lambda engine, scenario: uvloop.run(request.param(engine, scenario))


class Engine:
    """Answers all alike and remembers what it was asked."""

    def __init__(self, status: int = 200, body: bytes = b"{}", **headers: str) -> None:
        self.asked: list[ControlAsk] = []
        self._reply = EngineReply(status, headers, body)

    async def __call__(self, ask: ControlAsk) -> EngineReply:
        self.asked.append(ask)
        return self._reply


class Hanging(Engine):
    """Hears and never answers until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, ask: ControlAsk) -> EngineReply:
        self.heard.set()
        await self.go.wait()
        return await super().__call__(ask)


def test_both_methods_bring_status_headers_and_body(play: Play) -> None:
    engine = Engine(503, b"core dead", **{"x-word": "late"})

    async def scenario(control: ControlClient) -> None:
        got = await control.get("e0", "/health", timeout_s=LIVENESS_S)
        posted = await control.post("e0", "/v1/completions", body=b'{"a":1}', timeout_s=LIVENESS_S)
        for reply in (got, posted):
            assert (reply.status, reply.body, reply.headers["x-word"]) == (503, b"core dead", "late")

    play(engine, scenario)
    assert [(ask.method, ask.path, ask.body) for ask in engine.asked] == [
        ("GET", "/health", b""),
        ("POST", "/v1/completions", b'{"a":1}'),
    ]


def test_each_call_says_that_it_is_a_probe_of_our_epoch_under_an_id_of_its_own(play: Play) -> None:
    engine = Engine()

    async def scenario(control: ControlClient) -> None:
        await control.get("e0", "/health", timeout_s=LIVENESS_S)
        await control.post("e0", "/v1/completions", body=b"{}", timeout_s=LIVENESS_S)

    play(engine, scenario)
    for ask in engine.asked:
        assert ask.headers["x-narwhal-leg"] == "probe"
        assert ask.headers["x-narwhal-epoch"] == "demo/3"
        assert ask.headers["authorization"].lower() == "bearer key"
    assert len({ask.headers["x-request-id"] for ask in engine.asked}) == 2


def test_a_stale_epoch_is_raised_and_any_other_conflict_is_an_answer(play: Play) -> None:
    async def scenario(control: ControlClient) -> None:
        with pytest.raises(StaleEpoch) as caught:
            await control.post("e0", "/v1/completions", body=b"{}", timeout_s=LIVENESS_S)
        assert (caught.value.iid, caught.value.epoch) == ("e0", 9)

    play(Engine(409, fence.refusal(9)), scenario)

    async def answered(control: ControlClient) -> None:
        reply = await control.get("e0", "/health", timeout_s=LIVENESS_S)
        assert json.loads(reply.body) == {"error": {"message": "busy"}}

    play(Engine(409, b'{"error": {"message": "busy"}}'), answered)


def test_an_engine_that_is_not_there_and_one_that_hangs_up(play: Play) -> None:
    async def hang_up(ask: ControlAsk) -> EngineReply:
        raise ConnectionResetError

    async def scenario(control: ControlClient) -> None:
        with pytest.raises(EngineUnreachable):
            await control.get("e9", "/health", timeout_s=LIVENESS_S)
        with pytest.raises(EngineUnreachable):
            await control.post("e0", "/v1/completions", body=b"{}", timeout_s=LIVENESS_S)

    play(hang_up, scenario)


def test_an_engine_without_an_answer_is_given_up_in_time_and_its_place_is_free_again(play: Play) -> None:
    async def hang(ask: ControlAsk) -> EngineReply:
        if ask.method == "POST":
            await asyncio.Event().wait()
        return EngineReply(200, {}, b"")

    async def scenario(control: ControlClient) -> None:
        for _ in range(3):
            with pytest.raises(EngineTimeout):
                await control.post("e0", "/v1/completions", body=b"{}", timeout_s=0.1)
        assert (await control.get("e0", "/health", timeout_s=LIVENESS_S)).status == 200

    play(hang, scenario)


def test_no_free_connection_blames_nobody(play: Play) -> None:
    engine = Hanging()

    async def scenario(control: ControlClient) -> None:
        taken = [asyncio.create_task(control.get("e0", "/health", timeout_s=LIVENESS_S)) for _ in range(2)]
        await engine.heard.wait()
        with pytest.raises(PoolExhausted):
            await control.post("e0", "/v1/completions", body=b"{}", timeout_s=0.05)
        engine.go.set()
        for reply in await asyncio.gather(*taken):
            assert reply.status == 200

    play(engine, scenario)


def test_a_wait_for_a_connection_leaves_the_engine_its_whole_time(play: Play) -> None:
    """Else an engine that is well but not quick would be called dead for our own full pool."""
    engine = Hanging()

    async def scenario(control: ControlClient) -> None:
        taken = [asyncio.create_task(control.get("e0", "/a", timeout_s=LIVENESS_S)) for _ in range(2)]
        await engine.heard.wait()
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        waiting = asyncio.create_task(control.get("e0", "/late", timeout_s=1.0))
        await asyncio.sleep(0.3)
        taken[0].cancel()
        with pytest.raises(EngineTimeout):
            await waiting
        assert loop.time() - began >= 1.3
        taken[1].cancel()
        await asyncio.wait(taken)

    play(engine, scenario)


def test_a_cancelled_call_gives_its_connection_back(play: Play) -> None:
    engine = Hanging()

    async def scenario(control: ControlClient) -> None:
        for _ in range(3):
            call = asyncio.create_task(control.get("e0", "/health", timeout_s=LIVENESS_S))
            await engine.heard.wait()
            engine.heard.clear()
            call.cancel()
            await asyncio.wait({call})
        engine.go.set()
        assert (await control.get("e0", "/health", timeout_s=LIVENESS_S)).status == 200

    play(engine, scenario)
