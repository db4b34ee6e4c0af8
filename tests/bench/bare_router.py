"""The bare two-leg relay: our protocol, client and relay with nothing around them.

What it costs is the floor of the product's data plane: placement, journal and state come on top.

    python -m tests.bench.bare_router PORT PREFILL_PORTS DECODE_PORTS     (comma-separated)
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
from typing import Any

import uvicorn

from narwhal.api.client_stream import client_stream
from narwhal.api.protocol import RouterProtocol
from narwhal.clock import SystemClock
from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.engine.dialect import make_dialect
from narwhal.errors import EngineError
from narwhal.model.engine import EngineSpec, Leg
from narwhal.model.request import Api, InferenceRequest
from narwhal.ports import EngineCall, StreamCall
from narwhal.serving.relay import Relay, RelayPlan

HEADERS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))


class BareRouter:
    def __init__(self, prefills: list[str], decodes: list[str]) -> None:
        self.engines = [EngineSpec(port, f"http://127.0.0.1:{port}") for port in prefills + decodes]
        self.prefill = itertools.cycle(prefills)
        self.decode = itertools.cycle(decodes)
        self.dialect = make_dialect("vllm", "nixl")
        self.clock = SystemClock()
        self.numbers = itertools.count()
        self.client: LeanClient | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            return
        body = await whole_body(receive)
        async with client_stream(scope, receive, send) as stream:
            task = asyncio.current_task()
            assert task is not None
            stream.watch(task.cancel)
            rid = f"bare-{next(self.numbers)}"
            request = self.request(scope["path"], rid, body)
            try:
                await self.serve(request, stream)
            except EngineError as error:
                print(repr(error), file=sys.stderr)
                if not stream.started:
                    stream.start(502, [("content-type", "application/json")])
                stream.finish()

    def request(self, path: str, rid: str, body: bytes) -> InferenceRequest:
        fields = json.loads(body)
        options = fields.get("stream_options") or {}
        return InferenceRequest(
            api=Api(path),
            rid=rid,
            client_rid=None,
            fields=fields,
            body=body,
            stream=bool(fields.get("stream")),
            include_usage=bool(options.get("include_usage")),
            return_token_ids=bool(fields.get("return_token_ids")),
            arrived_at=self.clock.now(),
            arrived_wall=self.clock.wall(),
        )

    async def serve(self, request: InferenceRequest, stream: Any) -> None:
        client = self.client = self.client or LeanClient(self.engines, ClientSettings(4096, 1 << 24))
        path = request.api.value
        producer = next(self.prefill)
        prefill = EngineCall(
            producer,
            "POST",
            path,
            Leg.PREFILL,
            f"{request.rid}-p",
            self.dialect.prefill_body(request),
            total_s=120,
        )
        descriptor = self.dialect.read_prefill(await client.fetch(prefill), producer)
        body = self.dialect.decode_body(request, descriptor)
        decode = EngineCall(next(self.decode), "POST", path, Leg.DECODE, f"{request.rid}-d", body)
        headers = (*HEADERS, ("x-request-id", request.rid))
        plan = RelayPlan(headers, request.include_usage, lambda: None, lambda: None, 1 << 24)
        relay = Relay(stream, plan, clock=self.clock)
        await client.stream(StreamCall(decode, first_output_s=10.0, silence_s=60.0), relay)


async def whole_body(receive: Any) -> bytes:
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    return bytes(body)


def main(port: str, prefills: str, decodes: str) -> None:
    config = uvicorn.Config(
        BareRouter(prefills.split(","), decodes.split(",")),
        port=int(port),
        http=RouterProtocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
        backlog=4096,
    )
    gc.freeze()
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
