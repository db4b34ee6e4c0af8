"""`ports.ClientStream` twice: over uvicorn's transport (api/protocol.py), and over plain ASGI."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from narwhal.api.cycle import NOBODY_WAITS
from narwhal.ports import ClientStream

if TYPE_CHECKING:
    from narwhal.api.protocol import RouterProtocol

EXTENSION = "narwhal.client_stream"
"""Key of a `TransportStream` in the scope's `extensions`."""

_HIGH_WATER_BYTES = 65536
_LOW_WATER_BYTES = 16384

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def _nothing() -> None:
    pass


class TransportStream:
    """Writes to the client's transport in the caller's call. One per request, made by the protocol.

    Uvicorn's cycle is kept in step (`response_started`, `response_complete`, `on_response`), so that
    keep-alive, pipelined requests and shutdown go on working after raw writes.
    """

    __slots__ = (
        "_chunked", "_cycle", "_on_gone", "_on_pause", "_on_resume", "_open", "_protocol", "_write", "gone",
    )  # fmt: skip

    def __init__(self, protocol: RouterProtocol, cycle: RequestResponseCycle, *, chunked: bool) -> None:
        """`chunked`: the client understands chunks (HTTP/1.1)."""
        self.gone = False
        self._protocol = protocol
        self._cycle = cycle
        self._write = cycle.transport.write
        self._chunked = chunked
        self._open = False
        self._on_gone: Callable[[], None] = _nothing
        self._on_pause: Callable[[], None] = _nothing
        self._on_resume: Callable[[], None] = _nothing

    def whole_body(self) -> bytes | None:
        """The request's body if all of it is here: what `receive` would give, with nothing to wait for.

        None: it must be received, or the client has gone. Call it once.
        """
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue or self.gone:
            return None
        if cycle.flow.read_paused:
            cycle.flow.resume_reading()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    # --- ports.ClientStream ---

    @property
    def started(self) -> bool:
        return self._cycle.response_started

    def watch(self, on_gone: Callable[[], None]) -> None:
        if self.gone:
            on_gone()
        else:
            self._on_gone = on_gone

    def pace(self, *, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        self._on_pause, self._on_resume = on_pause, on_resume
        if self._cycle.flow.write_paused:
            on_pause()

    def start(
        self, status: int, headers: Sequence[tuple[str, str]], *, data: bytes = b"", last: bool = False
    ) -> None:
        if self.gone or self._cycle.response_started:
            return
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        told = ""
        for name, value in headers:
            if name == "connection" and value == "close":
                cycle.keep_alive = False
                continue
            if name == "content-length":
                self._chunked = False
            told += f"{name}: {value}\r\n"
        if not cycle.keep_alive:
            told += "connection: close\r\n"
        cycle.chunked_encoding = self._chunked
        told += "transfer-encoding: chunked\r\n\r\n" if self._chunked else "\r\n"
        head = [STATUS_LINE[status], *[b"%b: %b\r\n" % field for field in cycle.default_headers]]
        head += (told.encode("latin-1"), self._framed(data, last=last))
        if last:
            self._write_last(b"".join(head))
        else:
            self._open = True
            self._write(b"".join(head))

    def write(self, data: bytes) -> None:
        if self._open and data:
            self._write(self._framed(data))

    @property
    def chunk_writer(self) -> Callable[[bytes], None] | None:
        return self._write if self._chunked else None

    def finish(self, data: bytes = b"") -> None:
        if self._open:
            self._write_last(self._framed(data, last=True))

    def _write_last(self, data: bytes) -> None:
        """Ends the response. Nobody is paced by its last write any more: no one would let them go on."""
        self._open = False
        self._release()
        self._write(data)
        cycle = self._cycle
        cycle.response_complete = True
        if cycle.message_event is not NOBODY_WAITS:
            cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        self._protocol.on_response_complete()

    def _framed(self, data: bytes, *, last: bool = False) -> bytes:
        if not self._chunked:
            return data
        chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return chunk + b"0\r\n\r\n" if last else chunk

    def _release(self) -> None:
        """Lets go of the relay's methods: no cycle outlives a request."""
        self._on_gone = self._on_pause = self._on_resume = _nothing

    # --- told by the protocol ---

    def on_writable(self, writable: bool) -> None:
        if writable:
            self._on_resume()
        else:
            self._on_pause()

    def leave(self) -> None:
        """Its handler has returned: a response that has not ended never will."""
        if not self.gone and not self._cycle.response_complete:
            self._cycle.transport.close()

    def detach(self) -> None:
        """Takes the stream out of the scope: scope, stream and cycle would hold each other for the
        garbage collector, some sixty objects a request."""
        self._cycle.scope["extensions"] = {}

    def on_lost(self) -> None:
        """The connection has gone. After `finish` nobody is told."""
        self.detach()
        self._open = False
        self._cycle.disconnected = True
        self._cycle.message_event.set()
        if not self.gone and not self._cycle.response_complete:
            self.gone = True
            on_pause, on_gone = self._on_pause, self._on_gone
            self._release()
            on_pause()
            on_gone()


class AsgiStream:
    """Over plain ASGI, for other servers and for tests: a task sends what the relay wrote.

    The end of the client is seen by listening on `receive`, which is why the body must have been read.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.started = False
        self.gone = False
        self.chunk_writer: Callable[[bytes], None] | None = None
        self._receive = receive
        self._send = send
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._paused = False
        self._finished = False
        self._wake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._on_gone: Callable[[], None] = _nothing
        self._on_pause: Callable[[], None] = _nothing
        self._on_resume: Callable[[], None] = _nothing

    def watch(self, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self._listener = asyncio.create_task(self._listen())

    def pace(self, *, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        self._on_pause, self._on_resume = on_pause, on_resume
        if self._paused:
            on_pause()

    def start(
        self, status: int, headers: Sequence[tuple[str, str]], *, data: bytes = b"", last: bool = False
    ) -> None:
        if self.gone or self.started:
            return
        self.started = True
        self._pump = asyncio.create_task(self._send_all())
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._put({"type": "http.response.start", "status": status, "headers": raw})
        if last:
            self.finish(data)
        else:
            self.write(data)

    def write(self, data: bytes) -> None:
        if data and self.started and not self._finished:
            self._put({"type": "http.response.body", "body": data, "more_body": True})

    def finish(self, data: bytes = b"") -> None:
        if self.started and not self._finished:
            self._put({"type": "http.response.body", "body": data, "more_body": False})
            self._finished = True

    async def close(self) -> None:
        """At the end of the ASGI application: sends what is left of a finished response."""
        if self._pump is not None:
            if not self._finished:
                self._pump.cancel()
            await asyncio.wait([self._pump])
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    async def _send_all(self) -> None:
        while not self.gone:
            await self._wake.wait()
            self._wake.clear()
            while self._messages and not self.gone:
                await self._send_next()
            if self._finished:
                return

    async def _send_next(self) -> None:
        message = self._messages.popleft()
        try:
            await self._send(message)
        except OSError:
            self._lose()
            return
        self._bytes -= len(message.get("body", b""))
        if self._paused and self._bytes < _LOW_WATER_BYTES:
            self._paused = False
            self._on_resume()

    def _put(self, message: Message) -> None:
        if self.gone:
            return
        self._messages.append(message)
        self._bytes += len(message.get("body", b""))
        self._wake.set()
        if not self._paused and self._bytes > _HIGH_WATER_BYTES:
            self._paused = True
            self._on_pause()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._lose()

    def _lose(self) -> None:
        if not self.gone and not self._finished:
            self.gone = True
            self._wake.set()
            self._on_pause()
            self._on_gone()


def transport_stream(scope: Scope) -> TransportStream | None:
    """The stream of a request that our protocol serves, None under another server."""
    stream: TransportStream | None = (scope.get("extensions") or {}).get(EXTENSION)
    return stream


class client_stream:
    """`async with client_stream(scope, receive, send) as stream`: the transport's stream where our protocol
    serves, else one over plain ASGI.

    Leaving the block waits until everything written has been handed to the server.
    """

    __slots__ = ("_plain", "_stream")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ready = transport_stream(scope)
        self._plain = AsgiStream(receive, send) if ready is None else None
        self._stream: ClientStream | None = ready or self._plain

    async def __aenter__(self) -> ClientStream:
        assert self._stream is not None
        return self._stream

    async def __aexit__(self, *_: object) -> None:
        if self._plain is not None:
            await self._plain.close()
