"""Engine processes that die, stop or are told to stop while they serve a leg."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, Wire, ask, play

PROMPT = "Do narwhals sleep?"


@dataclass(frozen=True, slots=True)
class Site:
    router: Router
    producer: EngineProcess
    consumer: EngineProcess


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """One process per engine; the router's deadlines are short."""
    with ExitStack() as stack:
        paces = (("p", "0"), ("d", "0.05"))
        producer, consumer = (
            stack.enter_context(engine_process(1, "--names", name, "--prefill", "0", "--interval", interval))
            for name, interval in paces
        )
        limits = {"first_token_timeout_s": 1.0, "decode_read_timeout_s": 1.0, "tokenize_timeout_s": 0.3}
        fleet = fleet_document(
            [*producer.engines, *consumer.engines], engine=limits, serving={"prefill_timeout_s": 1.0}
        )
        router = stack.enter_context(router_process(tmp_path / "router", fleet))
        yield Site(router, producer, consumer)
        router.becomes_idle()
        assert "Traceback" not in router.process.output


def broken_while_it_streams(site: Site, number: int) -> Answer:
    """A stream whose decode engine gets this signal after some tokens."""

    async def scene() -> Answer:
        wire = await Wire.open(site.router.url)
        try:
            body = {"prompt": PROMPT, "max_tokens": 1000, "stream": True}
            await wire.request("POST", "/v1/completions", body=body)
            answer = await wire.head()
            for _ in range(3):
                await wire.chunk(answer)
            os.kill(site.consumer.process.pid, number)
            return await wire.rest(answer)
        finally:
            wire.close()

    return play(scene())


def ends_with_our_error(answer: Answer) -> None:
    assert (answer.status, answer.complete) == (200, True)
    assert "[DONE]" not in answer.events
    assert set(answer.documents[-1]["error"]) == {"message", "type", "param", "code"}
    assert all(
        choice["finish_reason"] is None for event in answer.documents[:-1] for choice in event["choices"]
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_stream_does_not_outlive_its_engine_in_silence(site: Site, number: int) -> None:
    ends_with_our_error(broken_while_it_streams(site, number))
    assert site.router.state()["failed"] == 1
    site.consumer.process.send(signal.SIGKILL)


def test_a_plain_answer_that_an_engine_cut_short_is_no_answer(site: Site) -> None:
    async def scene() -> Answer:
        body = {"prompt": PROMPT, "max_tokens": 1000}
        asked = asyncio.create_task(ask(site.router.url, "/v1/completions", body=body))
        begun = partial(eventually, lambda: site.consumer.engines[0].stats()["frames"] > 0)
        await asyncio.to_thread(begun, what="the decode leg")
        os.kill(site.consumer.process.pid, signal.SIGTERM)
        return await asked

    answer = play(scene())
    assert (answer.status, answer.error["type"]) == (502, "decode")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 502), (signal.SIGSTOP, 504)])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_an_engine_that_is_gone_or_stopped_is_told_by_status(
    site: Site, leg: str, number: int, status: int
) -> None:
    engine = site.producer if leg == "prefill" else site.consumer
    engine.process.send(number)
    answer = play(ask(site.router.url, "/v1/completions", body={"prompt": PROMPT, "max_tokens": 2}))
    assert (answer.status, answer.error["type"]) == (status, leg)
    engine.process.send(signal.SIGKILL)


def test_a_producer_that_dies_between_the_legs_fails_the_decode(site: Site) -> None:
    """A handshake with nobody takes the decode engine longer than the client has to wait."""
    site.producer.engines[0].order("handoff", leg="prefill", variant="dead_port", count=1)
    answer = play(ask(site.router.url, "/v1/completions", body={"prompt": PROMPT, "stream": True}))
    assert (answer.status, answer.error["type"]) == (504, "decode")
    assert "127.0.0.1" not in answer.body.decode()
