"""One HTTP/1.1 client connection to an engine: an asyncio protocol over llhttp, one exchange at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools

from narwhal.engine.exchange import Exchange, Head
from narwhal.engine.verbatim import Verbatim
from narwhal.errors import EngineUnreachable, StreamBroken

_HEAD_LIMIT = 65536
_HEAD_COMPLETE = -1
_NO_BODY = frozenset((204, 304))


class Connection(asyncio.Protocol):
    """Feeds one `Exchange` with what arrives; knows when it may carry the next one.

    `on_lost` is called once, when the socket is gone. What one read brought reaches the exchange in one
    call. `reused`: it has carried an exchange before.
    """

    __slots__ = (
        "_bodyless", "_bytes_of_head", "_chunk_closed", "_complete", "_delimited", "_drain", "_head",
        "_headers", "_informational", "_keep_alive", "_on_idle", "_on_lost", "_parser",
        "_pieces", "_verbatim", "exchange", "iid", "reused", "transport",
    )  # fmt: skip

    def __init__(self, iid: str, on_lost: Callable[[Connection], None]) -> None:
        self.iid = iid
        self.reused = False
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange[Any] | None = None
        self._on_lost = on_lost
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._keep_alive = True
        self._on_idle: Callable[[Connection], None] | None = None
        self._drain: asyncio.TimerHandle | None = None
        self._verbatim: Verbatim | None = None
        """Takes the reads in our place now."""
        self._reset()

    def _reset(self) -> None:
        self._headers: dict[str, str] = {}
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._bytes_of_head = 0
        self._bodyless = 0
        """Bytes behind the head since the last one of a body: trailers, which the parser keeps."""
        self._informational = False
        self._delimited = False
        self._chunk_closed = False
        self._complete = False

    # --- for the client ---

    @property
    def idle(self) -> bool:
        """May carry another exchange."""
        transport = self.transport
        return (
            self.exchange is None
            and self._keep_alive
            and transport is not None
            and not transport.is_closing()
        )

    def send(self, exchange: Exchange[Any], request: bytes) -> None:
        """Starts an exchange on an idle connection."""
        assert self.transport is not None and self.exchange is None
        self._reset()
        self.exchange = exchange
        exchange.attach(self)
        self.transport.write(request)

    def drain(self, on_idle: Callable[[Connection], None], within_s: float) -> None:
        """Its exchange has its result, the response has not ended: waits for that, then `on_idle`."""
        if self.exchange is None:
            self.abort()
            return
        self._on_idle = on_idle
        self._drain = asyncio.get_running_loop().call_later(within_s, self.abort)

    def pause_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def abort(self) -> None:
        """Closes the socket at once; the engine sees it and stops."""
        self._keep_alive = False
        if self.transport is not None:
            self.transport.abort()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.abort()
            return
        if self._parser is None:
            return
        if not exchange.started:
            exchange.started = True
            if exchange.arrivals is not None:
                exchange.not_before = exchange.arrivals.not_before(exchange.not_before)
        exchange.last_read_at = exchange.loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort()
            exchange.fail(StreamBroken(f"not HTTP: {error}", iid=self.iid, kind="malformed"))
            return
        if self._bytes_of_head >= 0:
            self._count_head(exchange, len(data))
        elif not self._pieces and not self._complete and self._too_much_bodyless(len(data)):
            self.abort()
            exchange.fail(StreamBroken("trailers over 64 KiB", iid=self.iid, kind="too_large"))
        else:
            self._hand_on(exchange)
            between_chunks = self._chunk_closed and not self._complete and data.endswith(b"\r\n")
            verbatim = exchange.verbatim if between_chunks else None
            if verbatim is not self._verbatim:
                self._let_pass(verbatim)

    def eof_received(self) -> None:
        if self.exchange is not None and not self._delimited and self._bytes_of_head == _HEAD_COMPLETE:
            self._end_exchange(self.exchange)
        self._lose(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)
        self._stop_drain()
        self._verbatim = self._on_idle = None
        self._parser = None
        self._on_lost(self)

    def pause_writing(self) -> None:
        """A request is bounded by serving.max_request_bytes: it waits in the transport's buffer."""

    def resume_writing(self) -> None:
        pass

    def _lose(self, exc: Exception | None) -> None:
        self._keep_alive = False
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_lost(exc)
        if self.transport is not None:
            self.transport.abort()

    def _let_pass(self, verbatim: Verbatim | None) -> None:
        """Hands the reads over to `verbatim`, or takes them back."""
        if self.transport is not None:
            self._verbatim = verbatim
            self.transport.set_protocol(verbatim or self)

    def _hand_on(self, exchange: Exchange[Any]) -> None:
        """After the parser has returned, so that no exception of an exchange passes through it."""
        head, self._head = self._head, None
        if head is not None:
            exchange.on_head(head)
        if self._pieces:
            self._bodyless = 0
            pieces, self._pieces = self._pieces, []
            exchange.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._complete:
            self._end_exchange(exchange)

    def _count_head(self, exchange: Exchange[Any], size: int) -> None:
        self._bytes_of_head += size
        if self._bytes_of_head > _HEAD_LIMIT:
            self.abort()
            exchange.fail(EngineUnreachable("response head over 64 KiB", iid=self.iid))

    def _too_much_bodyless(self, size: int) -> bool:
        self._bodyless += size
        return self._bodyless > _HEAD_LIMIT

    def _end_exchange(self, exchange: Exchange[Any]) -> None:
        self.exchange = None
        exchange.on_complete()
        self.reused = True
        on_idle, self._on_idle = self._on_idle, None
        if on_idle is not None:
            self._stop_drain()
            on_idle(self)

    def _stop_drain(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None

    # --- llhttp ---

    def on_message_begin(self) -> None:
        if self._complete:
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, {}
        self._informational = status < 200
        if self._informational or self._complete:
            return
        self._bytes_of_head = _HEAD_COMPLETE
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._delimited = chunked or "content-length" in headers or status in _NO_BODY
        self._head = Head(status, headers)

    def on_chunk_header(self) -> None:
        self._chunk_closed = False

    def on_chunk_complete(self) -> None:
        self._chunk_closed = True

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._informational or self._complete:
            return
        assert self._parser is not None
        self._complete = True
        self._keep_alive = self._keep_alive and self._parser.should_keep_alive()
