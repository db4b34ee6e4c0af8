"""What clients do: bodies of every kind and size, leaving in every phase; and what control does to them."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from narwhal.cluster.local import LocalGate
from narwhal.model.request import SHORT_BODY, InferenceRequest, Outcome
from tests.integration.test_request_path import (
    COMPLETIONS,
    PROMPT,
    TINY,
    error_of,
    events,
    fleet,
    legs,
    order,
    until,
    until_settled,
)
from tests.support.serving import Rig, RouterOptions
from tests.support.settings import engine_settings, serving_settings

SMALL = serving_settings(max_request_bytes=10_000)


@dataclass
class Wire:
    """A client that speaks bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def ended(self) -> bool:
        return await self.reader.read() == b""


@asynccontextmanager
async def wire(rig: Rig) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def head(*headers: str) -> bytes:
    return "\r\n".join([f"POST {COMPLETIONS} HTTP/1.1", "host: router", *headers, "", ""]).encode()


# --- bodies --------------------------------------------------------------------------------------


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes():
    async with fleet(serving=SMALL) as (rig, _), wire(rig) as client:
        await client.send(head("content-length: 5000000"))
        await client.send(b"x" * 5_000_000)
        status, headers, body = await client.answer()
        assert await client.ended()
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(body)["error"]["type"] == "request_too_large"
    assert rig.totals.own.invalid_requests == 1


async def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large():
    async with fleet(serving=SMALL) as (rig, _), wire(rig) as client:
        await client.send(head("transfer-encoding: chunked"))
        await client.send(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        status, headers, _ = await client.answer()
        await client.send(b"8000\r\n" + b"x" * 0x8000 + b"\r\n0\r\n\r\n")
        assert await client.ended()
    assert (status, headers["connection"]) == (413, "close")


async def test_a_chunked_body_byte_by_byte_is_served():
    body = json.dumps({**PROMPT, "stream": True}).encode()
    async with fleet() as (rig, stands), wire(rig) as client:
        await client.send(head("transfer-encoding: chunked"))
        for byte in body:
            await client.send(b"1\r\n" + bytes([byte]) + b"\r\n")
        await client.send(b"0\r\n\r\n")
        status_line = await client.reader.readline()
        await client.reader.readuntil(b"[DONE]")
        await until_settled(rig, stands)
    assert status_line == b"HTTP/1.1 200 OK\r\n"


async def test_a_body_that_stops_coming_is_a_timeout_and_the_connection_ends():
    async with fleet(options=RouterOptions(body_idle_s=0.2)) as (rig, _), wire(rig) as client:
        await client.send(head("content-length: 100") + b"{")
        status, headers, body = await client.answer()
        assert await client.ended()
    assert (status, headers["connection"]) == (408, "close")
    assert json.loads(body)["error"]["code"] == "request_timeout"
    assert rig.totals.own.invalid_requests == 1


async def test_a_client_that_leaves_inside_its_body_is_a_cancelled_request():
    async with fleet() as (rig, stands):
        async with wire(rig) as client:
            await client.send(head("content-length: 100") + b"{")
            await until(lambda: rig.ledger.inflight == 1)
        await until_settled(rig, stands)
    assert rig.totals.own.cancelled == 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "\xff"}',
        b'{"prompt": "Hi", "prompt": "Ho"}',
        b'{"prompt": "Hi", "temperature": NaN}',
        rb'{"prompt": "\ud800"}',
        b'{"prompt": "Hi", "kv_transfer_params": null}',
        b"",
    ],
    ids=lambda body: body[:20].decode("latin-1"),
)
async def test_bad_bodies_are_bad_requests(body):
    async with fleet() as (rig, stands):
        response = await rig.http.post(COMPLETIONS, content=body)
        assert legs(stands[0]) == {}
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"
    assert len(response.headers["x-request-id"]) == 32
    assert rig.totals.own.invalid_requests == 1


@pytest.mark.parametrize("limit", [10**19, 10**400], ids=["10^19", "10^400"])
async def test_a_token_limit_of_any_size_is_the_engines_to_judge(limit):
    async with fleet() as (rig, stands):
        order(stands[1], "status", status=400, message="max_tokens is too large", leg="decode")
        response = await rig.http.post(COMPLETIONS, json={**PROMPT, "max_tokens": limit})
        await until_settled(rig, stands)
    assert response.status_code == 400
    assert error_of(response)["message"] == "max_tokens is too large"


async def test_large_bodies_and_integers_of_any_size_reach_the_engine_as_sent():
    number = "9" * 6000
    body = f'{{"prompt": "Hi", "max_tokens": 2, "stream": true, "seed": {number}, "pad": "{"x" * 300_000}"}}'
    async with fleet() as (rig, stands):
        await rig.http.post(COMPLETIONS, content=body.encode())
        sent = next(seen for seen in stands[0].engine.stats.seen if seen.leg == "prefill")
    assert f'"seed":{number}'.encode() in sent.request.body
    assert sent.body_bytes > 300_000


# --- leaving -------------------------------------------------------------------------------------

PHASES = [
    ({"fault": "hang", "leg": "tokenize"}, 0),
    ({"fault": "hang", "leg": "prefill"}, 0),
    ({"fault": "slow", "leg": "prefill", "seconds": 60.0}, 0),
    ({"fault": "hang", "leg": "decode"}, 1),
    ({"fault": "silent_first_token", "leg": "decode"}, 1),
    ({"fault": "stall", "leg": "decode"}, 1),
]


@pytest.mark.parametrize(("fault", "engine"), PHASES, ids=str)
async def test_a_client_that_leaves_ends_its_legs_in_every_phase(fault, engine):
    sections = {"engine": engine_settings(tokenize_timeout_s=60.0, first_token_timeout_s=60.0)}
    async with fleet(**sections) as (rig, stands):
        order(stands[engine], **fault)
        async with wire(rig) as client:
            body = json.dumps(PROMPT).encode()
            await client.send(head(f"content-length: {len(body)}") + body)
            await until(lambda: legs(stands[engine]).get(fault["leg"]) == 1)
        await until_settled(rig, stands)
        # The engine hears of it a moment later, and one that hangs has nothing running to wait for.
        await until(lambda: stands[engine].engine.stats.aborted == 1)
    assert rig.recorder.rows[-1][1] is Outcome.CANCELLED
    assert rig.last.terminal == "cancelled"


async def test_a_connection_serves_one_request_after_another():
    async with fleet() as (rig, _):
        for _ in range(3):
            assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
            assert (await rig.http.post(COMPLETIONS, json={})).status_code == 400


# --- control -------------------------------------------------------------------------------------


@dataclass
class Switch(LocalGate):
    """A gate that a test opens and closes; `opens` while a handover is undecided."""

    open: bool = True
    opens_in_s: float | None = None
    waited: list[float] = field(default_factory=list)
    shutting_down: bool = False

    def may_admit(self, now: float) -> bool:
        return self.open

    def refusal(self, now: float) -> str:
        return "" if self.open else "standby"

    async def decided(self, timeout_s: float) -> None:
        self.waited.append(timeout_s)
        if self.opens_in_s is not None:
            await asyncio.sleep(min(self.opens_in_s, timeout_s))
            self.open = True


async def test_a_standby_refuses_before_it_reads_the_body():
    gate = Switch(open=False)
    async with fleet(options=RouterOptions(gate=gate)) as (rig, stands):
        response = await rig.http.post(COMPLETIONS, content=b"[")
        listed = await rig.http.get("/v1/models")
        assert legs(stands[0]) == {}
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert error_of(response)["code"] == "standby"
    assert listed.status_code == 200
    assert rig.totals.own.rejected == 1


async def test_a_connection_goes_on_after_an_answer_that_did_not_wait_for_the_body():
    gate = Switch(open=False)
    body = json.dumps({**PROMPT, "pad": "x" * 300_000}).encode()
    async with fleet(options=RouterOptions(gate=gate)) as (rig, _), wire(rig) as client:
        await client.send(head(f"content-length: {len(body)}") + body[:1000])
        status, _, _ = await client.answer()
        gate.open = True
        await client.send(body[1000:])
        await client.send(head(f"content-length: {len(body)}") + body)
        second = await client.reader.readline()
    assert status == 503
    assert second == b"HTTP/1.1 200 OK\r\n"


async def test_a_request_that_meets_a_handover_waits_for_its_end():
    gate = Switch(open=False, opens_in_s=0.05)
    async with fleet(options=RouterOptions(gate=gate)) as (rig, _):
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
    assert gate.waited == [0.5]


async def test_a_request_that_still_waits_when_control_is_lost_is_refused():
    gate = Switch()
    async with fleet(options=RouterOptions(gate=gate)) as (rig, stands):
        order(stands[0], "slow", leg="tokenize", seconds=0.2)
        asking = asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT))
        await until(lambda: legs(stands[0]).get("tokenize") == 1)
        gate.open = False
        response = await asking
        await until_settled(rig, stands)
        assert "prefill" not in legs(stands[0])
    assert response.status_code == 503
    assert error_of(response)["code"] == "standby"
    assert rig.totals.own.rejected == 1


async def test_a_request_past_prefill_dispatch_runs_to_its_end():
    gate = Switch()
    async with fleet(options=RouterOptions(gate=gate), sim=replace(TINY, prefill_s=0.2)) as (rig, stands):
        asking = asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT))
        await until(lambda: legs(stands[0]).get("prefill") == 1)
        gate.open = False
        response = await asking
        await until_settled(rig, stands)
    assert response.status_code == 200
    assert events(response.text)[-1] == "[DONE]"


async def test_a_stream_under_way_holds_no_prompt_in_memory():
    async with fleet() as (rig, stands):
        order(stands[1], "stall", leg="decode")
        long = {**PROMPT, "prompt": "s" * (SHORT_BODY + 1)}
        async with rig.http.stream("POST", COMPLETIONS, json=long) as response:
            assert response.status_code == 200
            # Garbage of earlier tests may still hold theirs.
            held = [found for found in gc.get_objects() if isinstance(found, InferenceRequest)]
            mine = [request for request in held if request.rid == response.headers["x-request-id"]]
            assert [(request.fields, request.body) for request in mine] == [({}, b"")]
        await until_settled(rig, stands)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_leaves_nothing_to_the_garbage_collector(stream):
    async with fleet() as (rig, stands):
        body = {**PROMPT, "stream": stream}
        await rig.http.post(COMPLETIONS, json=body)
        await until_settled(rig, stands)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await rig.http.post(COMPLETIONS, json=body)
            await until_settled(rig, stands)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            modules = {type(left).__module__ for left in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    ours = ("narwhal", "uvicorn", "starlette")
    assert {module for module in modules if module.startswith(ours)} == set()
