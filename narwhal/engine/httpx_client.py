"""A plain httpx twin of the lean client: the same port, the same contract suite, nothing clever.

It stands in for the lean one in tests, and shows what the lean one must do. Each exchange has a
connection of its own, so no idle socket can be closed under a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import httpx

from narwhal.clock import SystemClock
from narwhal.engine.client import ClientSettings, no_epoch
from narwhal.engine.feed import EventFeed
from narwhal.engine.refusal import refusal
from narwhal.engine.sse import is_event_stream
from narwhal.engine.target import Stamp, trusted_roots
from narwhal.errors import EngineError, EngineTimeout, EngineUnreachable, PoolExhausted, StreamBroken
from narwhal.model.engine import EngineSpec
from narwhal.ports import EngineCall, EngineReply, StreamCall, StreamSink


class HttpxClient:
    """`ports.EngineClient` over httpx; constructed like `LeanClient`."""

    def __init__(
        self, engines: Sequence[EngineSpec], settings: ClientSettings, *, stamp: Stamp = no_epoch
    ) -> None:
        self._urls = {spec.iid: spec.url for spec in engines}
        self._limit = settings.max_response_bytes
        self._stamp = stamp
        self._bearer = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=settings.max_connections, max_keepalive_connections=0),
            verify=trusted_roots(engines) or False,
            trust_env=False,
        )

    async def fetch(self, call: EngineCall) -> EngineReply:
        sent_at = SystemClock().now()
        async with _in_time(call), self._answer(call) as answer:
            reply = await self._whole(answer, call.iid)
        reply.not_before = sent_at
        return reply

    async def stream(self, call: StreamCall, sink: StreamSink) -> None:
        leg = _Leg(call, sink, limit=self._limit)
        async with _in_time(call.call), leg.limits(), self._answer(call.call) as answer:
            if answer.status_code != 200:
                raise refusal(await self._whole(answer, call.call.iid), call.call.iid)
            if not is_event_stream(answer.headers):
                raise StreamBroken("a 200 that is no event stream", iid=call.call.iid, kind="malformed")
            await leg.run(answer)

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _answer(self, call: EngineCall) -> AsyncIterator[httpx.Response]:
        """Sends `call`; leaving the block closes the connection."""
        timeout = httpx.Timeout(None, connect=call.connect_s, pool=call.pool_s)
        answer = None
        try:
            async with self._client.stream(
                call.method,
                self._urls[call.iid] + call.path,
                content=call.body,
                headers=self._headers(call),
                timeout=timeout,
                extensions={"trace": _permit_of(call)},
            ) as answer:
                yield answer
        except httpx.HTTPError as error:
            raise _told(error, call.iid, answered=answer is not None) from None

    def _headers(self, call: EngineCall) -> dict[str, str]:
        headers = {"x-request-id": call.rid, "x-narwhal-leg": call.leg.value, **self._bearer}
        if (epoch := self._stamp()) is not None:
            headers["x-narwhal-epoch"] = epoch
        if call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        if call.body:
            headers["content-type"] = "application/json"
        return headers

    async def _whole(self, answer: httpx.Response, iid: str) -> EngineReply:
        body = bytearray()
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > self._limit:
                raise StreamBroken(f"answer over {self._limit} bytes", iid=iid, kind="too_large")
        return EngineReply(answer.status_code, dict(answer.headers), bytes(body))


def _permit_of(call: EngineCall) -> Callable[[str, object], Awaitable[None]]:
    """httpcore tells its steps: the one before the head leaves is where the permit is asked."""

    async def trace(step: str, info: object) -> None:
        if call.permit is not None and step == "http11.send_request_headers.started":
            call.permit()

    return trace


class _Leg:
    """One decode leg as a reading loop; `LegFlow` of its sink."""

    def __init__(self, call: StreamCall, sink: StreamSink, *, limit: int) -> None:
        self.passed = self.pauses = 0
        self.error: EngineError | None = None
        self.iid = call.call.iid
        self._call = call
        self._feed = EventFeed(
            sink, call.call.iid, route=call.call.path, limit=limit, decode_all=call.decode_events
        )
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._reading = False
        self._heard_at = 0.0
        """Loop time from which silence counts."""
        self._scope: asyncio.Timeout | None = None

    # --- LegFlow ---

    @property
    def paused(self) -> bool:
        return not self._may_read.is_set()

    def pause(self) -> None:
        self.pauses += not self.paused
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def pass_chunks(self, write: Callable[[bytes], None]) -> None:
        """The framing of chunks is httpx's own business: everything comes to the sink."""

    def fail(self, error: EngineError) -> None:
        self.error = self.error or error
        self._may_read.set()
        if self._reading and self._scope is not None:
            self._scope.reschedule(0)

    # --- the loop ---

    @asynccontextmanager
    async def limits(self) -> AsyncIterator[None]:
        """First output and silence, counted by one rescheduled timeout; also how `fail` interrupts."""
        due = asyncio.get_running_loop().time() + self._call.first_output_s
        iid = self._call.call.iid
        try:
            async with asyncio.timeout_at(due) as self._scope:
                yield
        except TimeoutError:
            if self.error is not None:
                raise self.error from None
            if not self._feed.output_seen:
                raise EngineTimeout("no first token in time", iid=iid, kind="first_token") from None
            message = f"no data for {self._call.silence_s} s"
            raise EngineTimeout(message, iid=iid, kind="silence") from None

    async def run(self, answer: httpx.Response) -> None:
        """Reads to DONE."""
        self._feed.open(self)
        reads = answer.aiter_raw()
        loop = asyncio.get_running_loop()
        while not self._feed.done:
            if not self._may_read.is_set():
                self._scope_until(None)
                await self._may_read.wait()
                self._heard_at = loop.time()
            self._count_silence()
            self._reading = True
            data = await anext(reads, None)
            self._reading = False
            if data is None:
                self._feed.end()
            elif self._feed.feed(data):
                self._heard_at = loop.time()
            if self.error is not None:
                raise self.error

    def _count_silence(self) -> None:
        if self._feed.output_seen:
            silence_s = self._call.silence_s
            self._scope_until(self._heard_at + silence_s if silence_s > 0 else None)

    def _scope_until(self, when: float | None) -> None:
        if self._scope is not None and self.error is None:
            self._scope.reschedule(when)


@asynccontextmanager
async def _in_time(call: EngineCall) -> AsyncIterator[None]:
    """`total_s` of a call."""
    try:
        async with asyncio.timeout(call.total_s):
            yield
    except TimeoutError:
        raise EngineTimeout(f"no whole answer in {call.total_s} s", iid=call.iid) from None


def _told(error: httpx.HTTPError, iid: str, *, answered: bool) -> EngineError:
    """The exception of the port for one of httpx."""
    if isinstance(error, httpx.PoolTimeout):
        return PoolExhausted("no free connection", iid=iid)
    if isinstance(error, httpx.ConnectTimeout):
        return EngineTimeout("no connection in time", iid=iid, kind="connect")
    if answered:
        return StreamBroken("connection lost inside the response", iid=iid, kind="early_end")
    kind = "connect" if isinstance(error, httpx.ConnectError) else "lost"
    return EngineUnreachable(f"{type(error).__name__}: {error}", iid=iid, kind=kind)
