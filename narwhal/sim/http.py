"""HTTP/1.1 for the simulated engine: one asyncio protocol per connection, llhttp inside.

An `Exchange` is one request and its answer. Tokens are written to the transport in the caller's own
turn: no task, queue or future per request.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import httptools
import orjson

from narwhal.sim.faults import Fault
from narwhal.sim.packets import Packets

EVENT_STREAM = "text/event-stream; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One complete request. Header names are lower case; `path` has no query."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """The answer side of one request. Exactly one of reply, start..end, drop or reset ends it.

    `on_gone` is called once if the client goes away before the end. `faults` are those that this request
    gets, by kind; `packets` (one of them) cuts the body.
    """

    __slots__ = ("_connection", "_keep_alive", "done", "faults", "on_gone", "packets", "request", "started")

    def __init__(self, connection: Connection, request: Request, *, keep_alive: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self.request = request
        self.started = False
        self.done = False
        self.on_gone: Callable[[], None] | None = None
        self.faults: Mapping[str, Fault] = {}
        self.packets: Packets | None = None

    @property
    def paused(self) -> bool:
        """Whether the client reads slower than we write."""
        return self._connection.paused

    def reply(self, status: int, body: bytes, *, headers: Iterable[tuple[str, str]] = ()) -> None:
        """A whole JSON (or empty) answer."""
        if self.packets is not None:
            lines = {"content-type": _JSON, **dict(headers), "transfer-encoding": "chunked"}
            self._write(self._head(status, lines))
            self.packets.push(body)
            self.end()
            return
        self._write(self.head(status, len(body), headers=headers) + body)
        self._finish()

    def reply_json(self, status: int, document: Any, *, headers: Iterable[tuple[str, str]] = ()) -> None:
        self.reply(status, orjson.dumps(document), headers=headers)

    def head(self, status: int, length: int, *, headers: Iterable[tuple[str, str]] = ()) -> bytes:
        """The head of an answer whose body has `length` bytes."""
        lines = dict([("content-type", _JSON), *headers])
        lines["content-length"] = str(length)
        return self._head(status, lines)

    def start(self) -> None:
        """The head of an event stream."""
        self.started = True
        self._write(self._head(200, {"content-type": EVENT_STREAM, "transfer-encoding": "chunked"}))

    def send(self, data: bytes) -> None:
        """Body bytes of the stream, as one HTTP chunk (or as the fault cuts them)."""
        if self.packets is not None:
            self.packets.push(data)
        elif not self.done:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """The clean end of the stream."""
        if self.packets is not None:
            self.packets.finish(self._end_chunks)
        else:
            self._end_chunks()

    def send_raw(self, data: bytes) -> None:
        self._write(data)

    def drop(self) -> None:
        """Close in the middle of whatever was sent (after it has left)."""
        self._leave()
        self._connection.close()

    def reset(self) -> None:
        """RST."""
        self._leave()
        self._connection.reset()

    def gone(self) -> None:
        """The connection was lost."""
        if self.done:
            return
        callback = self._leave()
        if callback is not None:
            callback()

    def _end_chunks(self) -> None:
        self._write(b"0\r\n\r\n")
        self._finish()

    def _write(self, data: bytes) -> None:
        if not self.done:
            self._connection.write(data)

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        date = _date(int(time.time()))
        lines = [f"HTTP/1.1 {status} {_phrase(status)}", date, "server: narwhal-simulate"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not self._keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _leave(self) -> Callable[[], None] | None:
        self.done = True
        callback, self.on_gone = self.on_gone, None
        return callback

    def _finish(self) -> None:
        if not self.done:
            self._leave()
            self._connection.finished(keep_alive=self._keep_alive)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """As vLLM's server sends it: the whole second in which the head is written."""
    return f"date: {formatdate(second, usegmt=True)}"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class Connection(asyncio.Protocol):
    """One client connection. `handler` gets each exchange when its request is complete, one at a time."""

    def __init__(
        self,
        handler: Callable[[Exchange], None],
        open_connections: set[Connection],
        *,
        wanted: Callable[[], bool],
    ) -> None:
        """`wanted()`: whether the port is still open when the accepted connection gets here."""
        self._handler = handler
        self._open = open_connections
        self._wanted = wanted
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Exchange] = deque()
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._last = False
        self.current: Exchange | None = None
        self.paused = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        if not self._wanted():
            # Accepted before the port closed, made after: a reset, as for those still in the backlog.
            self.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._transport = None
        self._queue.clear()
        current, self.current = self.current, None
        if current is not None:
            current.gone()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.close()
        # Not inside the parser's callback, which would swallow what a handler raises.
        self._begin_next()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    # llhttp

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._url.decode("latin-1").partition("?")
        method = self._parser.get_method().decode("ascii")
        request = Request(method, path, query, self._headers, b"".join(self._body))
        self._body = []
        self._queue.append(Exchange(self, request, keep_alive=self._parser.should_keep_alive()))

    # ours

    @property
    def idle(self) -> bool:
        return self.current is None

    @property
    def drained(self) -> bool:
        """Nothing is being answered and nothing of an answer waits to be sent."""
        return self.idle and (self._transport is None or self._transport.get_write_buffer_size() == 0)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def end(self) -> None:
        """Close as soon as nothing is being answered."""
        self._last = True
        if self.idle:
            self.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        if self._transport is None:
            return
        linger_on_no_time = struct.pack("ii", 1, 0)
        self._transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger_on_no_time
        )
        self._transport.abort()

    def finished(self, *, keep_alive: bool) -> None:
        """The current exchange is answered."""
        self.current = None
        if self._last or not keep_alive:
            self.close()
        else:
            self._begin_next()

    def _begin_next(self) -> None:
        if self.current is None and self._queue:
            self.current = self._queue.popleft()
            self._handler(self.current)
