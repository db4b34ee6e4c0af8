"""The epoch fence in front of applications: as an ASGI middleware, under uvicorn, in the simulated engine."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from narwhal.fence import EpochFence, Message, Receive, Scope, Send
from tests.support.engines import engines_here

PROMPT = {"model": "simulated", "prompt": "hello", "max_tokens": 1}


async def tiny(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers 200 with the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


def asked(fence: EpochFence, headers: Iterable[tuple[bytes, bytes]]) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"1234", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(fence({"type": "http", "headers": list(headers)}, receive, send))
    return sent


def told(epoch: str, leg: str = "prefill") -> dict[str, str]:
    return {"x-narwhal-epoch": epoch, "x-narwhal-leg": leg}


def test_a_stale_request_never_reaches_the_application() -> None:
    fence = EpochFence(tiny)
    assert asked(fence, [(b"x-narwhal-epoch", b"demo/7")])[1]["body"] == b"4"
    start, end = asked(fence, [(b"x-narwhal-leg", b"prefill"), (b"x-narwhal-epoch", b"demo/6")])
    assert start["status"] == 409
    assert (b"content-type", b"application/json") in start["headers"]
    assert json.loads(end["body"])["error"]["code"] == "stale_epoch"
    assert json.loads(end["body"])["error"]["epoch"] == 7
    assert asked(fence, [(b"x-narwhal-leg", b"decode"), (b"x-narwhal-epoch", b"demo/6")])[0]["status"] == 200
    assert asked(fence, [])[0]["status"] == 200


def test_other_kinds_of_scope_pass() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Message:
        return {}

    fence = EpochFence(app)
    for kind in ("lifespan", "websocket"):
        asyncio.run(fence({"type": kind, "headers": [(b"x-narwhal-epoch", b"demo/7")]}, nothing, nothing))  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]
    assert fence.epochs.highest == {}


def test_it_is_found_as_vllm_looks_for_a_middleware() -> None:
    module, _, name = "narwhal.fence.EpochFence".rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type)
    assert asked(found(app=tiny), [])[0]["status"] == 200


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False)


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(EpochFence(tiny), log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Listening already: what comes before uvicorn accepts waits in the backlog.
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


def test_under_uvicorn_the_connection_goes_on_after_a_refusal() -> None:
    large = b"x" * 1_000_000

    async def scenario() -> None:
        async with served() as url, client_of(url) as client:
            sent = [("demo/7", b"a"), ("demo/6", large), ("demo/6", b"a"), ("demo/7", large)]
            answers = [await client.post("/", content=body, headers=told(epoch)) for epoch, body in sent]
            assert [answer.status_code for answer in answers] == [200, 409, 409, 200]
            assert answers[3].text == "1000000"
            crowd = [client.post("/", content=large, headers=told(f"demo/{n}")) for n in (4, 5, 6, 7)]
            assert [answer.status_code for answer in await asyncio.gather(*crowd)] == [409, 409, 409, 200]

    asyncio.run(scenario())


def test_the_simulated_engine_is_fenced_and_a_restarted_one_learns_anew() -> None:
    async def scenario() -> None:
        async with (
            engines_here(1) as (stand,),
            httpx.AsyncClient(base_url=stand.url, trust_env=False) as client,
        ):

            async def status(epoch: str, leg: str) -> int:
                return (
                    await client.post("/v1/completions", json=PROMPT, headers=told(epoch, leg))
                ).status_code

            assert (await client.get("/health", headers=told("demo/7", "probe"))).status_code == 200
            assert [await status("demo/6", leg) for leg in ("prefill", "probe", "decode")] == [409, 409, 200]
            assert (await client.get("/nowhere", headers=told("demo/6", "probe"))).status_code == 409
            stats = (await client.get("/sim/stats", headers=told("demo/6"))).json()
            assert stats["epochs"] == {"demo": 7}
            assert stats["fenced"] == {"prefill": 1, "probe": 2}
            assert stats["legs"] == {"health": 1, "decode": 1}
            stand.engine.begin_anew()
            assert await status("demo/6", "prefill") == 200

    asyncio.run(scenario())
