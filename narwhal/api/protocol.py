"""Uvicorn's HTTP protocol, ours: hands out the transport, limits request heads, keeps seeing the client.

Each request's scope carries a `TransportStream` in `extensions`, so that a relay's write goes to the
transport in the same call. A head over 64 KiB is answered 431, one that is not complete in 10 s is
closed, both before a task exists. Trailers and chunk extensions have the same limit: llhttp and uvicorn
keep trailers without one. What is no HTTP gets our error envelope.

While a response is under way the bytes of a pipelined request wait here unparsed and reading goes on, up
to `_HELD_LIMIT`: uvicorn would stop reading, and with it seeing that the client has gone.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from narwhal.api.client_stream import EXTENSION, TransportStream
from narwhal.api.envelope import envelope, new_request_id
from narwhal.api.errors import INVALID
from narwhal.model.request import Api

DATA_PATHS = {api.value.encode(): api.value for api in Api}
"""Request targets of nearly all the traffic."""
HEAD_LIMIT = 65536
LINGER_S = 2.0
"""How long bytes of a refused connection are read and dropped, so that the client sees why."""
_HELD_LIMIT = 65536


_UPGRADE = re.compile(rb"(?:\A|(?<=\n))Upgrade(?=[ \t]*:)", re.IGNORECASE)
"""The header's name where a line begins; a packet that begins inside a head may begin with it too."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class _HeadTooLarge(Exception):
    pass


def _without_upgrade(data: bytes) -> bytes:
    """An offered upgrade is declined by serving the request as it is (RFC 9110, section 7.8).

    llhttp would take what follows the head for another protocol and drop the body. Clients of HTTP/2
    libraries (Java's, `curl --http2`) offer h2c on their first request.
    """
    end = _HEAD_END.search(data)
    at = len(data) if end is None else end.start()
    return _UPGRADE.sub(b"Declined", data[:at]) + data[at:]


class RouterProtocol(HttpToolsProtocol):
    """Give it to uvicorn as `http=RouterProtocol`. Written against uvicorn 0.54; see test_protocol.py."""

    HEAD_TIMEOUT_S = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._streams: deque[TransportStream] = deque()
        self._held = bytearray()
        self._in_head = True
        self._head_begun = False
        """Inside a head that one read did not bring whole: only such a one is watched by a timer."""
        self._head_bytes = 0
        """Bytes that came since the last one of a body: of a head, trailers, chunk extensions."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._too_large = False
        self._refused = False
        self._rests_since: float | None = None
        """Loop time since when the connection waits for a request, None while it does not."""

    # --- asyncio ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def eof_received(self) -> None:
        """A client that sends no more is taken as gone: its legs end now, not when a write fails."""
        if self._streams:
            self._lose_streams()
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._held.clear()
        super().connection_lost(exc)
        self._lose_streams()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._held or self._answering():
            self._hold(data)
            return
        if self._in_head and (data.find(b"pgrade") >= 0 or data.find(b"PGRADE") >= 0):
            data = _without_upgrade(data)
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_LIMIT:
            self._refuse_head()
        if self._head_begun and self._head_timer is None:
            self._watch_head()
        if self.pipeline:
            self.flow.resume_reading()
        self._wait_for_the_next()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._streams:
            self._streams[0].on_writable(False)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._streams:
            self._streams[0].on_writable(True)

    # --- llhttp ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._head_begun = True

    def on_headers_complete(self) -> None:
        self._head_begun = False
        if self._head_timer is not None:
            self._stop_head_timer()
        if self._head_bytes > HEAD_LIMIT and self._head_size() > HEAD_LIMIT:
            self._too_large = True
            raise _HeadTooLarge
        self._in_head = False
        self._head_bytes = 0
        path = DATA_PATHS.get(self.url)
        if path is None or self.limit_concurrency is not None or self.parser.get_method() != b"POST":
            super().on_headers_complete()
        else:
            self._begin_cycle(path)
        self.headers = []  # Trailers go into a list that nobody reads: they are no headers.
        stream = TransportStream(self, self.cycle)
        self._streams.append(stream)
        self.scope["extensions"] = {EXTENSION: stream}  # type: ignore[dict-item]

    def _begin_cycle(self, path: str) -> None:
        """What uvicorn's own does, for a request whose target is known: it has no URL to take apart."""
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        scope["method"], scope["http_version"] = "POST", version
        scope["path"], scope["raw_path"], scope["query_string"] = path, self.url, b""
        before = self.cycle
        self.cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    # --- uvicorn ---

    def on_response_complete(self) -> None:
        """As uvicorn's own, but for the time of rest."""
        if self._streams:
            self._streams.popleft().detach()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._rest()
        if self._held:
            self.loop.call_soon(self._go_on)

    def send_400_response(self, msg: str) -> None:
        """What llhttp refuses, and what is over the limit. Nothing is written into or behind a response."""
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not (self._in_head and cycle.response_complete):
            self.transport.close()
        elif self._too_large:
            what = "request head is" if self._in_head else "body's trailers or chunk extensions are"
            self._answer(431, f"The {what} over {HEAD_LIMIT} bytes.")
        else:
            self._answer(400, msg)

    def _lose_streams(self) -> None:
        streams, self._streams = self._streams, deque()
        for stream in streams:
            stream.on_lost()

    # --- keep-alive: one timer outlasts many requests, where uvicorn's starts and stops one for each ---

    def _rest(self) -> None:
        self._rests_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_after(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        """Uvicorn calls it at any byte that comes."""
        self._rests_since = None

    def _close_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._rests_since is None:
            return
        left = self._rests_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._close_after(left)
        elif not self.transport.is_closing():
            self.transport.close()

    # --- pipelined requests ---

    def _answering(self) -> bool:
        """A whole request has been read and its response has not ended."""
        cycle = self.cycle
        return bool(self.pipeline) or (
            cycle is not None and not cycle.more_body and not cycle.response_complete
        )

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > _HELD_LIMIT:
            self.flow.pause_reading()

    def _wait_for_the_next(self) -> None:
        """Uvicorn's time for an idle connection ends with any byte, also of a body that comes behind its
        answer: nothing would ever end such a connection."""
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and self._head_timer is None and self._rests_since is None:
            self._rest()

    def _go_on(self) -> None:
        if self._held and not self._answering() and not self.transport.is_closing():
            data = bytes(self._held)
            self._held.clear()
            self.data_received(data)

    # --- heads ---

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(self.HEAD_TIMEOUT_S, self._close_slow_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow_head(self) -> None:
        self._head_timer = None
        self.transport.close()

    def _refuse_head(self) -> None:
        if not self._refused and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def _answer(self, status: int, message: str) -> None:
        body = envelope(message, INVALID)
        head = [STATUS_LINE[status], b"content-type: application/json\r\n", b"connection: close\r\n"]
        head.append(b"x-request-id: %b\r\n" % new_request_id().encode())
        head += [b"%b: %b\r\n" % field for field in self.server_state.default_headers]
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(b"".join(head) + body)
        self._refused = True
        self._lose_streams()
        self._linger()

    def _linger(self) -> None:
        """Closing on a client that still sends would reset the connection under the answer."""
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)
