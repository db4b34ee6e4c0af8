"""Clients with books of their own: an open load of streams and whole answers, and how each one ended.

Without a load balancer a client tries the other router where one refuses (503) or gives no answer at all, as
a balancer would; behind one it asks once. `cut`: an answer broke after output had begun. `failed`: no
whole answer for any other reason.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

PATIENCE_S: Final = 20.0
PAUSE_S: Final = 0.05
ANSWER_S: Final = 60.0
WAITING_S: Final = 0.5
HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Load:
    """`rate`: requests a second. Half of them stream for about `stream_s`, the others answer whole."""

    rate: float
    tokens: int
    stream_s: float

    @property
    def outstanding(self) -> int:
        """How many may be open at a time: what the rate needs, half of it streams, and half a second of
        waiting. A machine that is too slow for the rate gets a lower one instead of long queues."""
        return max(20, int(self.rate * (self.stream_s / 2 + WAITING_S)))


@dataclass(frozen=True, slots=True)
class Ending:
    """One request: when it began, when its first byte came (None: never), when it ended, and how:
    whole, cut, or a sentence."""

    began: float
    first: float | None
    ended: float
    how: str
    tries: int


@dataclass(slots=True)
class Books:
    endings: list[Ending] = field(default_factory=list)

    def count(self, how: str) -> int:
        return sum(one.how == how for one in self.endings)

    @property
    def failures(self) -> list[Ending]:
        return [one for one in self.endings if one.how not in ("whole", "cut")]

    @property
    def cut(self) -> list[Ending]:
        return [one for one in self.endings if one.how == "cut"]


class _Call(asyncio.Protocol):
    """One request on a connection of its own, read to its end."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = bytearray()
        self.first: float | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.first is None:
            self.first = time.monotonic()
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    @property
    def status(self) -> int:
        head = bytes(self.received[:16]).split()
        return int(head[1]) if len(head) > 1 and head[0] == b"HTTP/1.1" else 0


class Traffic:
    """Runs from entering to leaving; a request begun is finished. `urls`: routers, or one balancer.

    `retries`: whether a client tries again where nothing was answered yet.
    """

    def __init__(self, urls: Sequence[str], load: Load, *, retries: bool) -> None:
        self.books = Books()
        self.load = load
        self.sent = 0
        self.began = 0.0
        self.ended = 0.0
        self._places = [(str(place.hostname), int(place.port or 80)) for place in map(urlsplit, urls)]
        self._preferred = 0
        self._retries = retries
        self._stopping = False
        self._seats = asyncio.Semaphore(load.outstanding)
        self._requests: set[asyncio.Task[None]] = set()
        self._pacer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Traffic:
        self.began = time.monotonic()
        self._pacer = asyncio.create_task(self._pace())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stopping = True
        assert self._pacer is not None
        await self._pacer
        self.ended = time.monotonic()
        await asyncio.gather(*self._requests)

    @property
    def rate(self) -> float:
        """Requests a second that were really sent."""
        return self.sent / ((self.ended or time.monotonic()) - self.began)

    async def _pace(self) -> None:
        due = time.monotonic()
        while not self._stopping:
            await self._seats.acquire()
            task = asyncio.create_task(self._one(self.sent))
            self._requests.add(task)
            task.add_done_callback(self._done)
            self.sent += 1
            due = max(due + 1 / self.load.rate, time.monotonic() - 0.2)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        self._seats.release()

    async def _one(self, number: int) -> None:
        streamed = number % 2 == 0
        request, began, tries = _request(number, self.load.tokens if streamed else 2), time.monotonic(), 0
        while True:
            tries += 1
            which = self._preferred
            call, trouble = await self._ask(which, request)
            how = _judged(call, trouble, streamed=streamed)
            again = how in ("refused", "no answer") and self._retries
            if not again or time.monotonic() - began > PATIENCE_S:
                break
            if self._preferred == which:
                self._preferred = (which + 1) % len(self._places)
            await asyncio.sleep(PAUSE_S)
        first = call.first if call else None
        self.books.endings.append(Ending(began, first, time.monotonic(), how, tries))

    async def _ask(self, which: int, request: bytes) -> tuple[_Call | None, str]:
        place, loop = self._places[which], asyncio.get_running_loop()
        call: _Call | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                _, call = await loop.create_connection(lambda: _Call(request), *place)
                await call.over
        except (OSError, TimeoutError) as error:
            return call, type(error).__name__
        finally:
            if call is not None and call.transport is not None:
                call.transport.abort()
        return call, ""


def _judged(call: _Call | None, trouble: str, *, streamed: bool) -> str:
    if call is None or call.status == 0:
        return "no answer" if trouble != "TimeoutError" else "no answer within a minute"
    if call.status == 503:
        return "refused"
    if call.status != 200:
        return f"{call.status} {call.received.partition(HEAD_END)[2][:200].decode(errors='replace')}"
    body = bytes(call.received[-400:])
    end = b"data: [DONE]" if streamed else b'"finish_reason"'
    return "whole" if end in body or (not streamed and end in call.received) else "cut"


def _request(number: int, tokens: int) -> bytes:
    fields = {"model": "simulated", "max_tokens": tokens, "stream": tokens > 2, "prompt": f"drill {number}"}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: drill\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body
