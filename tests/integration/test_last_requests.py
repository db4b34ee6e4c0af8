"""The last requests of a server that ends: what reached it before it closed is answered, and nobody is reset.

The sockets are plain ones that write from the loop's own thread: what they send is in the kernel and unread,
deterministically, when the server is told to stop. On a busy machine that is every clean restart.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from narwhal.runtime.listener import HttpServer, bind

GET = b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


class App:
    """Answers everything with two letters."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def generate(self, scope: Any, receive: Any, *, stream: Any) -> None:
        stream.start(200, [("content-type", "text/plain")])
        stream.write(b"ok")
        stream.finish()


class Ending:
    """A server and what its clients get from it."""

    def __init__(self) -> None:
        self._listener = bind("127.0.0.1", 0)
        self._readers = ThreadPoolExecutor(8)
        self._made: list[socket.socket] = []
        self.address: tuple[str, int] = self._listener.getsockname()
        self.server = HttpServer(App(), self._listener)

    def connection(self) -> socket.socket:
        made = socket.create_connection(self.address, timeout=10.0)
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()
        self._readers.shutdown()

    async def used(self) -> socket.socket:
        """A connection that has served a request and is kept alive."""
        made = self.connection()
        made.sendall(GET)
        answer = await asyncio.to_thread(made.recv, 4096)
        assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" not in answer
        return made

    def rest(self, made: socket.socket) -> Future[bytes]:
        """All that still comes, to the end; raises where the connection is reset."""

        def read() -> bytes:
            told = b""
            while piece := made.recv(4096):
                told += piece
            return told

        return self._readers.submit(read)


def play(scenario: Callable[[Ending], Awaitable[None]]) -> None:
    async def main() -> None:
        ending = Ending()
        await ending.server.start()
        try:
            await scenario(ending)
        finally:
            ending.close()

    uvloop.run(main())


@pytest.mark.parametrize("request_", [GET, POST], ids=["asgi", "generating"])
def test_a_request_that_came_unread_is_answered_and_told_that_the_connection_closes(request_: bytes) -> None:
    async def scenario(ending: Ending) -> None:
        kept, fresh = await ending.used(), ending.connection()
        await asyncio.sleep(0.05)  # it is accepted
        for made in (kept, fresh):
            made.sendall(request_)
        answers = [ending.rest(kept), ending.rest(fresh)]
        await ending.server.stop()
        for answer in answers:
            told = await asyncio.wrap_future(answer)
            assert told.startswith(b"HTTP/1.1 200") and b"ok" in told
            assert b"connection: close\r\n" in told

    play(scenario)


@pytest.mark.parametrize("request_", [GET, POST], ids=["asgi", "generating"])
def test_a_connection_that_was_never_accepted_is_served_before_the_listener_goes(request_: bytes) -> None:
    async def scenario(ending: Ending) -> None:
        waiting = [ending.connection() for _ in range(5)]
        for made in waiting:
            made.sendall(request_)
        answers = [ending.rest(made) for made in waiting]
        await ending.server.stop()
        for answer in answers:
            assert b"ok" in await asyncio.wrap_future(answer)
        with pytest.raises(ConnectionRefusedError):
            ending.connection()

    play(scenario)


def test_an_idle_connection_is_closed_and_not_reset_and_what_crosses_is_dropped() -> None:
    """Its client learns of the end before its next request, if it looks; one under way meets no RST."""

    async def scenario(ending: Ending) -> None:
        kept = await ending.used()
        came: Future[bytes] = ending.rest(kept)
        stopped = asyncio.create_task(ending.server.stop())
        assert await asyncio.wrap_future(came) == b"", "the end of the stream"
        kept.sendall(GET)
        await asyncio.sleep(0.02)
        kept.sendall(GET)
        kept.close()
        began = time.monotonic()
        await stopped
        assert time.monotonic() - began < 5.0

    play(scenario)


def test_half_a_head_is_waited_for_no_longer_than_the_end_takes() -> None:
    async def scenario(ending: Ending) -> None:
        kept = await ending.used()
        kept.sendall(GET[:20])
        rest = ending.rest(kept)
        stopped = asyncio.create_task(ending.server.stop())
        await asyncio.sleep(0.3)
        kept.sendall(GET[20:])
        assert (await asyncio.wrap_future(rest)).endswith(b"ok")
        await stopped

    play(scenario)
