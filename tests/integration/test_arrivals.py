"""The age of an answer, over real sockets, on a loop that is held up anywhere: never younger than it is."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from narwhal.clock import SystemClock
from narwhal.engine.arrivals import TICK_S
from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.ports import EngineCall, EngineReply
from tests.support.processes import eventually

NOW = SystemClock().now
CALLERS = HINDERERS = 4
"""Enough that a call is always open, and that what hinders comes before and behind the tick in one turn."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Engine:
    """Answers on threads of its own, which no loop holds up: `wait` after each request, then two pieces with
    `between` between. Its body tells by when the first of them was in the client's socket."""

    def __init__(self, listener: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.wait: Callable[[], object] = lambda: None
        self.between: Callable[[], object] = lambda: None
        self.begun = threading.Event()
        self.threads: list[threading.Thread] = []
        self._listener = listener

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self.threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(65536):
                self.wait()
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                begun_at = repr(NOW()).encode()
                self.begun.set()
                self.between()
                connection.sendall(b"content-length: %d\r\n\r\n%b" % (len(begun_at), begun_at))


@contextmanager
def engine() -> Iterator[Engine]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Engine(listener)
        accepting = threading.Thread(target=made.accept, daemon=True)
        accepting.start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)
        for thread in (accepting, *made.threads):
            thread.join(30.0)
            assert not thread.is_alive()


def held(seconds: float) -> None:
    """Holds up the loop that it runs on."""
    until = NOW() + seconds
    while NOW() < until:
        pass


async def asked(client: LeanClient) -> EngineReply:
    return await client.fetch(
        EngineCall("e0", "POST", "/v1/completions", Leg.PREFILL, "r", b"{}", total_s=60.0)
    )


def run(name: str, story: Callable[[LeanClient, Engine], Coroutine[Any, Any, None]]) -> None:
    async def main(one: Engine) -> None:
        client = LeanClient([EngineSpec("e0", one.url, Role.PREFILL)], ClientSettings(4, 1 << 20))
        try:
            await story(client, one)
        finally:
            await client.aclose()

    with engine() as one, asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        runner.run(main(one))


@pytest.mark.parametrize("loop", LOOPS)
def test_whatever_holds_up_the_loop_no_answer_is_younger_than_its_first_byte(loop: str) -> None:
    """Holds at random, while answers come at random."""
    rng = random.Random(loop)

    async def story(client: LeanClient, one: Engine) -> None:
        one.wait = one.between = lambda: time.sleep(rng.choice((0.0, 0.01, 0.05)))
        running = asyncio.get_running_loop()

        def hinder() -> None:
            held(rng.choice((0.0, 0.02, 0.06)))
            running.call_later(rng.choice((0.01, TICK_S / 2, TICK_S)), hinder)

        for _ in range(HINDERERS):
            hinder()

        async def ask_often() -> None:
            for _ in range(20):
                sent_at = NOW()
                reply = await asked(client)
                assert sent_at <= reply.not_before <= float(reply.body)

        await asyncio.gather(*(ask_often() for _ in range(CALLERS)))

    run(loop, story)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_runs_knows_that_the_answer_had_not_come(loop: str) -> None:
    """The engine answers once the loop has looked: the age is not that of the question."""

    async def story(client: LeanClient, one: Engine) -> None:
        looked = threading.Event()
        one.wait = looked.wait
        sent_at = NOW()
        asking = asyncio.create_task(asked(client))
        await asyncio.sleep(3 * TICK_S)
        for _ in range(5):
            await asyncio.sleep(0)
        looked.set()
        assert (await asking).not_before >= sent_at + TICK_S

    run(loop, story)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_is_as_old_as_its_first_byte_though_its_end_comes_late(loop: str) -> None:
    async def story(client: LeanClient, one: Engine) -> None:
        ended = threading.Event()
        one.between = ended.wait
        asking = asyncio.create_task(asked(client))
        await asyncio.to_thread(eventually, one.begun.is_set)
        await asyncio.sleep(5 * TICK_S)
        ended.set()
        reply = await asking
        assert reply.not_before <= float(reply.body)

    run(loop, story)
