"""Every fault switch of the simulated engine, seen from the wire (engines.md section 3)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from narwhal.sim.faults import KINDS, parse_fault
from narwhal.sim.rack import Stand
from narwhal.sim.text import answer_text, text_prompt
from tests.support.engines import QUICK, engines_here
from tests.support.processes import LIVENESS_S
from tests.support.wire import Answer, Wire, ask, play, request_bytes, until

PROMPT = "Why is the tusk of the narwhal twisted?"
TOKENS = 24
TEXT = answer_text(text_prompt(PROMPT).seed, TOKENS)


async def order(stand: Stand, fault: str, **fields: Any) -> Answer:
    answer = await ask(stand.side_url, "/sim/faults", body={"fault": fault, **fields})
    assert answer.status == 200, answer.body
    return answer


async def stream(stand: Stand, **fields: Any) -> Answer:
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "stream": True, **fields}
    return await ask(stand.url, "/v1/completions", body=body)


async def plain(stand: Stand, **fields: Any) -> Answer:
    return await stream(stand, stream=False, **fields)


async def begun(stand: Stand) -> tuple[Wire, asyncio.Task[Answer]]:
    """A stream whose answer may never come."""
    wire = await Wire.open(stand.url)
    await wire.request(
        "POST", "/v1/completions", body={"prompt": PROMPT, "max_tokens": TOKENS, "stream": True}
    )
    return wire, asyncio.create_task(wire.answer())


def with_engine(scene: Callable[[Stand], Awaitable[None]]) -> None:
    async def play_it() -> None:
        async with engines_here(1) as (stand,):
            await scene(stand)
            await until(lambda: not stand.engine.running)

    play(play_it())


def test_refuse_closes_the_port_until_cleared() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "refuse")
        with pytest.raises(ConnectionRefusedError):
            await ask(stand.url, "/health")
        port = stand.port
        await ask(stand.side_url, "/sim/faults", method="DELETE")
        assert (await ask(stand.url, "/health")).status == 200
        assert stand.port == port

    with_engine(scene)


def test_refuse_ends_a_busy_connection_after_its_answer() -> None:
    async def scene() -> None:
        async with engines_here(1, replace(QUICK, interval_s=0.005)) as (stand,):
            wire, reading = await begun(stand)
            await until(lambda: stand.engine.running == 1)
            await order(stand, "refuse")
            assert (await reading).text == TEXT
            assert await wire.ended()
            wire.close()

    play(scene())


@pytest.mark.parametrize("turns", range(6))
def test_refuse_leaves_no_connection_that_was_on_its_way(turns: int) -> None:
    """In the backlog, accepted, or about to be made: none of them may live on as an open port.

    On the loop that the command runs on: with asyncio's own, Python 3.11 forgets some of them unread."""

    async def scene() -> None:
        async with asyncio.timeout(LIVENESS_S), engines_here(1) as (stand,):
            with ExitStack() as stack:
                there = ("127.0.0.1", stand.port)
                clients = [stack.enter_context(socket.create_connection(there, timeout=9.0)) for _ in "abc"]
                for _ in range(turns):
                    await asyncio.sleep(0)
                stand.engine.order(parse_fault({"fault": "refuse"}))
                for client in clients:
                    assert await asyncio.to_thread(answer_to, client) == b""

    uvloop.run(scene())


def answer_to(client: socket.socket) -> bytes:
    """What comes back to a health check before the connection ends."""
    try:
        client.sendall(request_bytes("GET", "/health"))
        return client.recv(65_536)
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    ("fault", "head_comes"), [("hang", False), ("silent_first_token", True), ("stall", True)]
)
def test_silence(fault: str, head_comes: bool) -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, fault)
        wire = await Wire.open(stand.url)
        await wire.request("POST", "/v1/completions", body={"prompt": PROMPT, "stream": True})
        if head_comes:
            answer = await wire.head()
            if fault == "stall":
                await wire.chunk(answer)
            rest = asyncio.create_task(wire.chunk(answer))
        else:
            rest = asyncio.create_task(wire.ended())
        await asyncio.sleep(0.1)
        assert not rest.done(), "nothing more comes"
        rest.cancel()
        wire.close()
        await until(lambda: stand.engine.stats.aborted == 1)

    with_engine(scene)


@pytest.mark.parametrize("fault", ["slow", "slow_first_token"])
def test_slowness_is_no_failure(fault: str) -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, fault, seconds=0.1)
        started = asyncio.get_running_loop().time()
        assert (await stream(stand)).text == TEXT
        assert asyncio.get_running_loop().time() - started >= 0.1

    with_engine(scene)


def test_slow_tokens_are_that_many_times_slower() -> None:
    async def scene() -> None:
        async with engines_here(1, replace(QUICK, interval_s=0.002)) as (stand,):
            await order(stand, "slow_tokens", factor=5)
            started = asyncio.get_running_loop().time()
            assert (await stream(stand)).text == TEXT
            assert asyncio.get_running_loop().time() - started >= 0.01 * (TOKENS - 1)

    play(scene())


def test_a_stall_of_some_seconds_ends() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "stall", after=3, seconds=0.05)
        assert (await stream(stand)).text == TEXT

    with_engine(scene)


def test_close_leaves_the_body_unfinished() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "close", after=2)
        for answer in (await stream(stand), await plain(stand)):
            assert (answer.status, answer.complete) == (200, False)
        assert len((await stream(stand)).documents) == 2

    with_engine(scene)


def test_no_done_ends_cleanly_but_too_early() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "no_done", after=2, count=1)
        cut = await stream(stand)
        assert (cut.complete, len(cut.events)) == (True, 2)
        await order(stand, "no_done", count=1)
        whole = await stream(stand)
        assert (whole.complete, whole.text, "[DONE]" in whole.events) == (True, TEXT, False)

    with_engine(scene)


def test_one_request_can_be_poison() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "status", status=500, match="Why is the tusk")
        assert (await stream(stand)).status == 500
        assert (await stream(stand, prompt="How long is the tusk?")).status == 200

    with_engine(scene)


@pytest.mark.parametrize("after", [0, 2])
def test_rst_is_a_reset(after: int) -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "rst", after=after)
        wire = await Wire.open(stand.url)
        await wire.request("POST", "/v1/completions", body={"prompt": PROMPT, "stream": True})
        with pytest.raises(ConnectionResetError):
            answer = await wire.head()
            while True:
                await wire.chunk(answer)

    with_engine(scene)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 422, 429, 500, 503])
def test_status_answers_in_the_engines_shape(status: int) -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "status", status=status, retry_after=7, message="no", leg="decode", count=1)
        answer = await stream(stand)
        assert (answer.status, answer.error["code"], answer.error["message"]) == (status, status, "no")
        assert answer.headers["retry-after"] == "7"
        assert (await stream(stand)).text == TEXT, "only the next one request"

    with_engine(scene)


@pytest.mark.parametrize("after", [0, 2])
def test_an_error_inside_a_200(after: int) -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "error_in_200", after=after)
        answer = await stream(stand)
        assert (answer.status, answer.events[-1], len(answer.documents)) == (200, "[DONE]", after + 1)
        assert "error" in answer.documents[-1]
        whole = await plain(stand)
        assert (whole.status, whole.error["code"]) == (200, 500)

    with_engine(scene)


def test_a_handoff_can_be_missing_or_malformed() -> None:
    async def scene(stand: Stand) -> None:
        wants = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}
        for variant in ("missing", "null_blocks"):
            await order(stand, "handoff", variant=variant, count=1)
        assert "kv_transfer_params" not in (await plain(stand, **wants)).json()
        assert (await plain(stand, **wants)).json()["kv_transfer_params"]["remote_block_ids"] is None

    with_engine(scene)


def test_abort_is_a_finish_reason() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "abort", after=3)
        answer = await stream(stand)
        finishes = [event["choices"][0]["finish_reason"] for event in answer.documents]
        assert (finishes, answer.events[-1]) == ([None, None, "abort"], "[DONE]")
        assert (await plain(stand)).json()["choices"][0]["finish_reason"] == "abort"

    with_engine(scene)


def test_wrong_model_is_seen_on_the_card_and_refused_on_the_legs() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "wrong_model", model="tiny")
        assert (await ask(stand.url, "/v1/models")).json()["data"][0]["id"] == "tiny"
        assert (await stream(stand, model="simulated")).status == 404

    with_engine(scene)


def test_process_start_moves() -> None:
    async def scene(stand: Stand) -> None:
        before = (await ask(stand.url, "/metrics")).body
        await order(stand, "process_start", shift=5.0)
        after = (await ask(stand.url, "/metrics")).body
        start = [float(text.split(b"\n")[1].split()[1]) for text in (before, after)]
        assert start[1] - start[0] == pytest.approx(5.0)

    with_engine(scene)


def test_slow_health_leaves_the_other_routes_alone() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "slow", leg="health", seconds=60)
        wire = await Wire.open(stand.url)
        await wire.request("GET", "/health")
        assert (await stream(stand)).text == TEXT
        assert stand.engine.stats.legs["health"] == 1
        wire.close()
        await until(lambda: stand.engine.stats.aborted == 1)

    with_engine(scene)


def test_huge_events_pause_for_a_reader_that_is_slower() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "huge", bytes=2 << 20)
        wire, reading = await begun(stand)
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.2)
        assert stand.engine.stats.frames < TOKENS, "it does not write without end"
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await reading
        assert all(len(event["choices"][0]["text"]) >= 2 << 20 for event in answer.documents)
        wire.close()

    with_engine(scene)


@pytest.mark.parametrize(("fault", "end"), [("crlf", b"\r\n"), ("cr", b"\r")])
def test_line_ends(fault: str, end: bytes) -> None:
    async def scene(stand: Stand) -> None:
        usual = await stream(stand)
        await order(stand, fault)
        body = (await stream(stand)).body
        assert body.count(end) == usual.body.count(b"\n")
        assert body.endswith(b"data: [DONE]" + end + end)
        assert len(body.split(end + end)) == len(usual.body.split(b"\n\n"))

    with_engine(scene)


def test_comments_and_multi_line_events_say_the_same() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "comments")
        await order(stand, "multi_line")
        body = (await stream(stand)).body
        assert body.count(b": ping\n\n") == TOKENS + 1
        data = [
            b"\n".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
            for event in body.split(b"\n\n")
        ]
        events = [event for event in data if event]
        assert all(b"\n" in event for event in events[:-1])
        assert Answer(200, {}, b"".join(b"data: %b\n\n" % e.replace(b"\n", b"") for e in events)).text == TEXT

    with_engine(scene)


def test_packets_can_end_in_the_middle_of_a_character() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "split_utf8")
        answer = await stream(stand)
        assert answer.text == TEXT
        assert any(_ends_inside_utf8(chunk) for chunk in answer.chunks)

    with_engine(scene)


def _ends_inside_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def test_one_byte_per_packet() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "one_byte")
        answer = await stream(stand)
        assert answer.text == TEXT
        assert {len(chunk) for chunk in answer.chunks} == {1}
        assert (await plain(stand)).json()["choices"][0]["text"] == TEXT

    with_engine(scene)


def test_the_whole_stream_can_be_cut_at_one_byte() -> None:
    async def scene(stand: Stand) -> None:
        await order(stand, "split", at=101)
        answer = await stream(stand)
        assert answer.text == TEXT
        assert [len(chunk) for chunk in answer.chunks] == [101, len(answer.body) - 101]

    with_engine(scene)


def test_a_dead_core_breaks_what_runs_and_is_gone_in_the_end() -> None:
    async def scene() -> None:
        async with engines_here(1, replace(QUICK, interval_s=0.02)) as (stand,):
            wire, reading = await begun(stand)
            await until(lambda: stand.engine.stats.frames > 0)
            await order(stand, "core_dead")
            answer = await reading
            assert (answer.status, answer.events[-1], "error" in answer.documents[-1]) == (
                200,
                "[DONE]",
                True,
            )
            assert (await ask(stand.url, "/health")).status == 200, "health does not know yet"
            await until(lambda: stand.engine.healthy_no_more)
            assert (await ask(stand.url, "/health")).status == 503
            wire.close()
            await ask(stand.side_url, "/sim/faults", method="DELETE")
            assert (await stream(stand)).text == TEXT

    play(scene())


def test_a_stopped_core_stays_healthy_and_answers_nothing_until_it_goes_on() -> None:
    async def scene() -> None:
        async with engines_here(1, replace(QUICK, interval_s=0.01)) as (stand,):
            await order(stand, "core_stopped")
            wire, reading = await begun(stand)
            await asyncio.sleep(0.05)
            assert (await ask(stand.url, "/health")).status == 200
            assert not reading.done()
            await ask(stand.side_url, "/sim/faults", method="DELETE")
            assert (await reading).text == TEXT
            wire.close()

    play(scene())


def test_restart_is_a_new_process_on_the_same_port() -> None:
    async def scene(stand: Stand) -> None:
        old = stand.engine.side.engine_id
        await order(stand, "restart", down_s=0.05)
        with pytest.raises(ConnectionRefusedError):
            await ask(stand.url, "/health")
        await until(lambda: not stand.engine.core_dead)
        assert (await stream(stand)).text == TEXT
        assert stand.engine.side.engine_id != old

    with_engine(scene)


async def pulled(producer: Stand, consumer: Stand) -> Answer:
    """A prompt prefilled on one engine and streamed from another."""
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    first = await plain(producer, max_tokens=1, kv_transfer_params=asked)
    return await stream(consumer, kv_transfer_params=first.json()["kv_transfer_params"])


def test_a_broken_edge_fails_from_one_producer_only() -> None:
    async def scene() -> None:
        async with engines_here(3) as (first, second, consumer):
            await order(consumer, "edge", port=first.side_port)
            broken = await pulled(first, consumer)
            assert (broken.status, broken.error["code"]) == (500, 500)
            assert (await pulled(second, consumer)).text == TEXT
            assert (await pulled(first, second)).text == TEXT
            await ask(consumer.side_url, "/sim/faults", method="DELETE")
            consumer.engine.reset_prefix_cache()
            assert (await pulled(first, consumer)).text == TEXT

    play(scene())


def test_a_silent_edge_says_nothing_until_the_client_leaves() -> None:
    async def scene() -> None:
        async with engines_here(2) as (producer, consumer):
            await order(consumer, "edge", port=producer.side_port, how="silent")
            reading = asyncio.create_task(pulled(producer, consumer))
            await until(lambda: consumer.engine.running == 1)
            await asyncio.sleep(0.1)
            assert not reading.done()
            reading.cancel()
            await until(lambda: consumer.engine.running == 0)

    play(scene())


def test_a_wrong_order_is_400_and_puts_nothing_in_force() -> None:
    async def scene(stand: Stand) -> None:
        for body in (b"{", {"fault": "stal"}, {"faults": [{"fault": "hang"}, {"fault": "slow"}]}):
            answer = await ask(stand.url, "/sim/faults", body=body)
            assert (answer.status, answer.error["type"]) == (400, "BadRequestError")
        assert (await ask(stand.url, "/sim/faults")).json() == {"faults": []}

    with_engine(scene)


def test_stats_show_what_was_asked_with_headers_and_body() -> None:
    async def scene(stand: Stand) -> None:
        await ask(
            stand.url, "/v1/completions", body={"prompt": "seen"}, x_narwhal_leg="decode", x_request_id="r1"
        )
        stats = (await ask(stand.url, "/sim/stats")).json()
        (seen,) = stats["requests"]
        assert (seen["leg"], seen["headers"]["x-request-id"], seen["body"]) == (
            "decode",
            "r1",
            '{"prompt": "seen"}',
        )
        assert (stats["legs"], stats["completed"], stats["running"]) == ({"decode": 1}, 1, 0)
        assert "requests" not in (await ask(stand.url, "/sim/stats?requests=0")).json()
        await ask(stand.url, "/sim/reset", body=b"", method="POST")
        assert (await ask(stand.url, "/sim/stats")).json()["legs"] == {}

    with_engine(scene)


def test_every_kind_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f'"{kind}"' not in source] == []
