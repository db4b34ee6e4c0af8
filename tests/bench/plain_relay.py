"""The contender that everybody would write first: Starlette and httpx, two legs, one line of policy.

`python -m tests.bench.plain_relay PORT PREFILL_PORT,.. DECODE_PORT,..`
"""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def build(prefill: list[int], decode: list[int]) -> Starlette:
    limits = httpx.Limits(max_connections=4096, max_keepalive_connections=4096)
    client = httpx.AsyncClient(limits=limits, timeout=600, trust_env=False)
    producers, consumers = itertools.cycle(prefill), itertools.cycle(decode)

    async def completions(request: Request) -> Response:
        body = await request.json()
        first = {key: value for key, value in body.items() if key not in {"stream", "stream_options"}}
        first |= {"max_tokens": 1, "kv_transfer_params": REMOTE_DECODE}
        headers = {"x-request-id": uuid.uuid4().hex}
        url = f"http://127.0.0.1:{next(producers)}{request.url.path}"
        answer = await client.post(url, json=first, headers=headers)
        answer.raise_for_status()
        second = {**body, "kv_transfer_params": answer.json()["kv_transfer_params"]}
        url = f"http://127.0.0.1:{next(consumers)}{request.url.path}"

        async def relay() -> AsyncIterator[bytes]:
            async with client.stream("POST", url, json=second, headers=headers) as stream:
                async for chunk in stream.aiter_raw():
                    yield chunk

        return StreamingResponse(relay(), media_type="text/event-stream")

    async def health(request: Request) -> Response:
        return Response()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", completions, methods=["POST"]),
        Route("/health", health),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    port, *legs = sys.argv[1:]
    app = build(*[[int(one) for one in leg.split(",")] for leg in legs])
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)
