"""ports.EngineClient: the lean client and its httpx twin do the same with the same engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import uvloop

from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.engine.httpx_client import HttpxClient
from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    PoolExhausted,
    StreamBroken,
)
from narwhal.model.engine import EngineSpec, Leg
from narwhal.ports import EngineCall, EngineClient, EventKind, LegFlow, StreamCall, StreamEvent
from tests.support.processes import LIVENESS_S
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

Kind = Callable[..., EngineClient]
SETTINGS = ClientSettings(max_connections=4, max_response_bytes=100_000)
CALL = EngineCall("e0", "POST", "/v1/completions", Leg.DECODE, "rid-1", b'{"a":1}', total_s=LIVENESS_S)
STREAM = StreamCall(CALL, first_output_s=LIVENESS_S)


def event(text: str = "x", reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    document = {"id": "cmpl-1", "choices": [choice]}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
GOOD = [event(" a"), event(" b"), event(" c"), event(" d"), event("", "stop"), DONE]


@dataclass
class Sink:
    """Keeps everything; `act` may do something at each event."""

    data: bytes = b""
    kinds: list[EventKind] = field(default_factory=list)
    plain: int = 0
    flow: LegFlow | None = None
    raw: bool = False
    act: Callable[[Sink], None] | None = None

    def on_open(self, flow: LegFlow) -> None:
        self.flow = flow
        if self.raw:
            flow.pass_chunks(self.on_raw)

    def on_raw(self, data: bytes) -> None:
        head, _, rest = data.partition(b"\r\n")
        assert len(rest) == int(head, 16) + 2
        self.data += rest[:-2]

    def on_plain(self, data: bytes, events: int) -> None:
        self.data += data
        self.plain += events
        self._act()

    def on_events(self, events: Sequence[StreamEvent]) -> None:
        assert events
        self.data += b"".join(event.raw for event in events)
        self.kinds += [event.kind for event in events]
        self._act()

    def _act(self) -> None:
        if self.act is not None:
            self.act(self)


@pytest.fixture(params=["lean", "httpx"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return LeanClient if request.param == "lean" else HttpxClient


def serve(
    kind: Kind,
    script: Script,
    scenario: Callable[[EngineClient, ScriptedEngine], Awaitable[Any]],
    settings: ClientSettings = SETTINGS,
) -> None:
    async def main() -> None:
        async with scripted_engine(script) as engine:
            client = kind([engine.spec], settings, stamp=lambda: "demo/3")
            try:
                await scenario(client, engine)
            finally:
                await client.aclose()

    uvloop.run(main())


def says(*parts: bytes) -> Script:
    """Answers every request with `parts`, each in a packet of its own."""

    async def script(line: Line) -> None:
        while True:
            await line.request()
            for part in parts:
                await line.say(part)
                await asyncio.sleep(0.002)

    return script


def stream_of(*events: bytes) -> Script:
    return says(HEAD, *map(chunk, events), END)


async def fails(awaitable: Awaitable[Any], kind: type[EngineError]) -> Any:
    with pytest.raises(kind) as caught:
        await awaitable
    return caught.value


# --- fetch ---


@pytest.mark.parametrize(
    "parts",
    [
        (answer(200, b'{"ok":1}', "x-vendor: 1"),),
        (
            b"HTTP/1.1 200 OK\r\nx-vendor: 1\r\ntransfer-",
            b'encoding: chunked\r\n\r\n4\r\n{"ok',
            b'\r\n4\r\n":1}\r\n0\r\n\r\n',
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n", answer(200, b'{"ok":1}', "x-vendor: 1")),
    ],
    ids=["length", "chunked", "informational"],
)
def test_fetch_gives_status_headers_and_body(kind: Kind, parts: tuple[bytes, ...]) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for _ in range(3):
            reply = await client.fetch(CALL)
            assert (reply.status, reply.body, reply.headers["x-vendor"]) == (200, b'{"ok":1}', "1")

    serve(kind, says(*parts), scenario)


def test_a_body_that_ends_with_its_connection_is_whole(kind: Kind) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(b"HTTP/1.1 200 OK\r\n\r\n{}")
        line.writer.close()

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for _ in range(2):
            assert (await client.fetch(CALL)).body == b"{}"

    serve(kind, script, scenario)


@pytest.mark.parametrize("status", [204, 400, 404, 429, 500, 503])
def test_a_status_is_an_answer(kind: Kind, status: int) -> None:
    body = b"" if status == 204 else b'{"error":{"message":"no"}}'
    reply = answer(status, body) if body else b"HTTP/1.1 204 X\r\n\r\n"

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for _ in range(2):
            assert (await client.fetch(CALL)).status == status

    serve(kind, says(reply), scenario)


def test_requests_carry_our_headers_and_the_whole_body(kind: Kind) -> None:
    seen: list[tuple[str, bytes]] = []
    body = b'{"x":"' + b"y" * 300_000 + b'"}'

    async def script(line: Line) -> None:
        while True:
            seen.append(await line.request())
            await line.say(answer(200, b"{}"))

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        await client.fetch(replace(CALL, body=body, traceparent="00-ab-cd-01"))

    serve(kind, script, scenario, ClientSettings(4, 100_000, api_key="secret"))
    head, sent = seen[0]
    assert sent == body
    assert head.startswith("POST /v1/completions HTTP/1.1\r\n")
    lines = {line.lower() for line in head.split("\r\n")}
    assert lines >= {
        "authorization: bearer secret",
        "x-request-id: rid-1",
        "x-narwhal-leg: decode",
        "x-narwhal-epoch: demo/3",
        "traceparent: 00-ab-cd-01",
        "content-type: application/json",
    }


def test_an_answer_over_the_limit_is_broken_off(kind: Kind) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        error = await fails(client.fetch(CALL), StreamBroken)
        assert (error.kind, error.iid) == ("too_large", "e0")
        await until(lambda: engine.gone == [0], "the connection is closed")

    serve(kind, says(answer(200, b"x" * 200_000)), scenario)


def test_nobody_listening_is_unreachable(kind: Kind) -> None:
    async def main() -> None:
        client = kind([EngineSpec("e0", "http://127.0.0.1:1")], SETTINGS)
        error = await fails(client.fetch(CALL), EngineUnreachable)
        assert error.iid == "e0"
        await fails(client.stream(STREAM, Sink()), EngineUnreachable)
        await client.aclose()

    uvloop.run(main())


def test_a_connection_closed_before_the_answer_is_unreachable(kind: Kind) -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.reset()

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        await fails(client.fetch(CALL), EngineUnreachable)
        await fails(client.stream(STREAM, Sink()), EngineUnreachable)
        assert len(engine.lines) == 2, "a fresh connection that fails is not tried again"

    serve(kind, script, scenario)


def test_a_connection_closed_inside_the_answer_is_a_broken_one(kind: Kind) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}")
        line.writer.close()

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        assert (await fails(client.fetch(CALL), StreamBroken)).kind == "early_end"

    serve(kind, script, scenario)


def closes_idle(last: bytes) -> Script:
    """Connection 0 answers one request and resets at the next one, unanswered; others say `last`."""

    async def script(line: Line) -> None:
        await line.request()
        if line.number == 0:
            await line.say(answer(200, b"{}"))
            await line.request()
            line.reset()
        await line.say(last)

    return script


def test_an_idle_connection_that_the_engine_had_closed_is_no_failure(kind: Kind) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for _ in range(2):
            assert (await client.fetch(CALL)).body == b"{}"

    serve(kind, closes_idle(answer(200, b"{}")), scenario)

    async def streamed(client: EngineClient, engine: ScriptedEngine) -> None:
        assert (await client.fetch(CALL)).body == b"{}"
        sink = Sink()
        await client.stream(STREAM, sink)
        assert sink.data == b"".join(GOOD)

    serve(kind, closes_idle(HEAD + b"".join(map(chunk, GOOD)) + END), streamed)


async def silent(line: Line) -> None:
    await line.request()


def test_no_answer_in_time_is_a_timeout_and_closes_the_connection(kind: Kind) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        error = await fails(client.fetch(replace(CALL, total_s=0.1)), EngineTimeout)
        assert (error.kind, error.iid, error.timed_out) == ("read", "e0", True)
        await until(lambda: engine.gone == [0], "the connection is closed")

    serve(kind, silent, scenario)


def test_cancelling_closes_the_connection_at_once(kind: Kind) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for number, run in enumerate((client.fetch(CALL), client.stream(STREAM, Sink()))):
            task = asyncio.ensure_future(run)
            await until(lambda number=number: len(engine.lines) > number, "the call has arrived")
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await until(lambda number=number: number in engine.gone, "the connection is closed")

    serve(kind, silent, scenario)


def test_a_full_pool_is_our_own_fault_and_frees_again(kind: Kind) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        held = [asyncio.ensure_future(client.fetch(CALL)) for _ in range(4)]
        await until(lambda: len(engine.lines) == 4, "all seats are taken")
        await fails(client.fetch(replace(CALL, pool_s=0.05)), PoolExhausted)
        held[0].cancel()
        waiting = asyncio.ensure_future(client.fetch(CALL))
        await until(lambda: len(engine.lines) == 5, "a freed seat is given on")
        for task in (*held, waiting):
            task.cancel()
        await asyncio.gather(*held, waiting, return_exceptions=True)

    serve(kind, silent, scenario)


class No(Exception):
    pass


def refuse() -> None:
    raise No


def test_a_call_without_permit_sends_nothing_and_keeps_no_seat(kind: Kind) -> None:
    refused = replace(CALL, permit=refuse)

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for _ in range(SETTINGS.max_connections + 1):
            with pytest.raises(No):
                await client.fetch(refused)
            with pytest.raises(No):
                await client.stream(replace(STREAM, call=refused), Sink())
        assert (await client.fetch(CALL)).status == 200

    requests: list[str] = []

    async def script(line: Line) -> None:
        while True:
            requests.append((await line.request())[0])
            await line.say(answer(200, b"{}"))

    serve(kind, script, scenario)
    assert len(requests) == 1


def test_the_permit_is_asked_after_the_wait_for_a_seat(kind: Kind) -> None:
    asked: list[int] = []

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        held = [asyncio.ensure_future(client.fetch(CALL)) for _ in range(4)]
        await until(lambda: len(engine.lines) == 4, "all seats are taken")
        last = replace(CALL, permit=lambda: asked.append(len(engine.gone)))
        waiting = asyncio.ensure_future(client.fetch(last))
        await asyncio.sleep(0)
        assert asked == []
        held[0].cancel()
        await until(lambda: len(engine.lines) == 5, "the freed seat is taken")
        await until(lambda: len(asked) == 1, "the permit is asked")
        for task in (*held, waiting):
            task.cancel()
        await asyncio.gather(*held, waiting, return_exceptions=True)

    serve(kind, silent, scenario)


# --- streams ---


def test_a_stream_hands_on_every_event_in_order(kind: Kind) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for raw in (False, True):
            sink = Sink(raw=raw)
            await client.stream(STREAM, sink)
            assert sink.data == b"".join(GOOD)
            assert sink.kinds[0] is EventKind.OUTPUT
            assert sink.kinds[-2:] == [EventKind.FINISH, EventKind.DONE]
            assert sink.flow is not None
            assert sink.plain + sink.flow.passed + len(sink.kinds) == len(GOOD)

    serve(kind, stream_of(*GOOD), scenario)


def test_decoded_streams_have_every_event_with_its_document(kind: Kind) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink()
        await client.stream(replace(STREAM, decode_events=True), sink)
        assert (sink.plain, len(sink.kinds)) == (0, len(GOOD))

    serve(kind, stream_of(*GOOD), scenario)


@pytest.mark.parametrize(
    "framing",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        % len(b"".join(GOOD)),
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
    ],
    ids=["length", "close"],
)
def test_other_framings_of_a_stream_work(kind: Kind, framing: bytes) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink()
        await client.stream(STREAM, sink)
        assert sink.data == b"".join(GOOD)

    serve(kind, says(framing, *GOOD), scenario)


def test_one_byte_a_packet_changes_nothing(kind: Kind) -> None:
    wire = HEAD + b"".join(map(chunk, GOOD[:1] + GOOD[-2:])) + END

    async def script(line: Line) -> None:
        await line.request()
        for at in range(len(wire)):
            await line.say(wire[at : at + 1])
            if at % 7 == 0:
                await asyncio.sleep(0)

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink(raw=True)
        await client.stream(STREAM, sink)
        assert sink.data == b"".join(GOOD[:1] + GOOD[-2:])

    serve(kind, script, scenario)


def test_a_refusal_carries_the_engines_error(kind: Kind) -> None:
    body = json.dumps({"error": {"message": "too long", "code": 400}}).encode()

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink()
        for _ in range(2):
            error = await fails(client.stream(STREAM, sink), EngineRefused)
            assert (error.status, error.error["message"], error.retry_after_s) == (429, "too long", 7.0)
        assert sink.flow is None

    serve(kind, says(answer(429, body, "retry-after: 7")), scenario)


@pytest.mark.parametrize(
    ("script", "kind_of_fault"),
    [
        (says(answer(200, b"{}")), "malformed"),
        (stream_of(event(), b"data: nonsense\n\n"), "malformed"),
        (stream_of(event(), event("", "stop")), "early_end"),
        (stream_of(event(), b"data: " + b"x" * 200_000), "too_large"),
    ],
    ids=["no event stream", "no JSON", "no DONE", "event too long"],
)
def test_a_stream_without_its_clean_end_is_broken(kind: Kind, script: Script, kind_of_fault: str) -> None:
    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink()
        error = await fails(client.stream(STREAM, sink), StreamBroken)
        assert (error.kind, error.iid) == (kind_of_fault, "e0")
        if sink.flow is not None:
            assert sink.data.startswith(event()), "what came before the fault was handed on"

    serve(kind, script, scenario)


def test_a_stream_that_is_cut_is_broken(kind: Kind) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(HEAD + chunk(event()))
        await asyncio.sleep(0.02)
        line.reset()

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink()
        assert (await fails(client.stream(STREAM, sink), StreamBroken)).kind == "early_end"
        assert sink.data == event()

    serve(kind, script, scenario)


@pytest.mark.parametrize(
    ("said", "limits", "kind_of_timeout"),
    [
        (b"", {"first_output_s": 0.15}, "first_token"),
        (HEAD, {"first_output_s": 0.15}, "first_token"),
        (HEAD + chunk(b": ping\n\n"), {"first_output_s": 0.15}, "first_token"),
        (HEAD + chunk(event()), {"silence_s": 0.15}, "silence"),
    ],
    ids=["no head", "no event", "only comments", "silence"],
)
def test_limits_of_a_stream(kind: Kind, said: bytes, limits: dict[str, float], kind_of_timeout: str) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(said)

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        error = await fails(client.stream(replace(STREAM, **limits), Sink()), EngineTimeout)
        assert error.kind == kind_of_timeout
        await until(lambda: engine.gone == [0], "the connection is closed")

    serve(kind, script, scenario)


@pytest.mark.parametrize("begin", [b": ping\n\n", b"\n", b'data: {"id":"'], ids=["comment", "blank", "event"])
def test_what_completes_no_event_is_silence(kind: Kind, begin: bytes) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(HEAD + chunk(event()) + chunk(begin))
        more = b"x" if begin.startswith(b"data") else begin
        while True:
            await asyncio.sleep(0.02)
            await line.say(chunk(more))

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        for raw in (False, True):
            call = replace(STREAM, silence_s=0.2)
            error = await fails(client.stream(call, Sink(raw=raw)), EngineTimeout)
            assert error.kind == "silence"

    serve(kind, script, scenario)


def test_a_sink_that_fails_its_leg_ends_it_with_that_error(kind: Kind) -> None:
    mine = StreamBroken("mine", kind="bad_finish")

    def act(sink: Sink) -> None:
        assert sink.flow is not None
        sink.flow.fail(mine)

    async def script(line: Line) -> None:
        await line.request()
        await line.say(HEAD + chunk(event()))

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        assert await fails(client.stream(STREAM, Sink(act=act)), StreamBroken) is mine
        await until(lambda: engine.gone == [0], "the connection is closed")

    serve(kind, script, scenario)


def test_a_paused_leg_stops_its_engine_and_counts_no_silence(kind: Kind) -> None:
    many = 600
    filler = event("x" * 20_000)
    sent = 0

    def act(sink: Sink) -> None:
        if len(sink.data) > len(filler) and not held:
            held.append(True)
            assert sink.flow is not None
            sink.flow.pause()

    held: list[bool] = []

    async def script(line: Line) -> None:
        nonlocal sent
        await line.request()
        await line.say(HEAD)
        for _ in range(many):
            await line.say(chunk(filler))
            sent += 1
        await line.say(chunk(event("", "stop")) + chunk(DONE) + END)

    async def scenario(client: EngineClient, engine: ScriptedEngine) -> None:
        sink = Sink(act=act)
        task = asyncio.ensure_future(client.stream(replace(STREAM, silence_s=0.3), sink))
        await until(lambda: held, "paused")
        await asyncio.sleep(0.6)
        assert sent < many, "the engine is held back"
        assert not task.done(), "a paused leg is not silent"
        assert sink.flow is not None
        sink.flow.pause()
        assert (sink.flow.paused, sink.flow.pauses) == (True, 1), "paused already"
        sink.flow.resume()
        assert (sink.flow.paused, sink.flow.pauses) == (False, 1)
        await task
        assert len(sink.data) == many * len(filler) + len(event("", "stop")) + len(DONE)

    serve(kind, script, scenario)
