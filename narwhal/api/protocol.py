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
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from narwhal.api.client_stream import EXTENSION, TransportStream
from narwhal.api.cycle import NOBODY_WAITS, GeneratingCycle
from narwhal.api.envelope import envelope, new_request_id
from narwhal.api.errors import INVALID
from narwhal.api.parting import Parting
from narwhal.api.request_head import BadHead
from narwhal.model.request import Api

DATA_PATHS = {api.value.encode(): api.value for api in Api}
"""Request targets of nearly all the traffic."""
HEAD_LIMIT = 65536
LINGER_S = 2.0
"""How long bytes of a refused connection are read and dropped, so that the client sees why."""
_HELD_LIMIT = 65536
_FRAMING = 16
"""Bytes of chunk framing that each byte of a body may bring: chunks of one byte need six."""

_UPGRADE = re.compile(rb"(?:\A|(?<=\n))Upgrade(?=[ \t]*:)", re.IGNORECASE)
"""The header's name where a line begins; a packet that begins inside a head may begin with it too."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")


def _without_upgrade(data: bytes) -> bytes:
    """An offered upgrade is declined by serving the request as it is (RFC 9110, section 7.8).

    llhttp would take what follows the head for another protocol and drop the body. Clients of HTTP/2
    libraries (Java's, `curl --http2`) offer h2c on their first request.
    """
    end = _HEAD_END.search(data)
    at = len(data) if end is None else end.start()
    return _UPGRADE.sub(b"Declined", data[:at]) + data[at:]


def _head_size(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def _refusal(status: int, message: str, *, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A whole response, after which the connection closes."""
    body = envelope(message, INVALID)
    head = [STATUS_LINE[status], b"content-type: application/json\r\n", b"connection: close\r\n"]
    head.append(b"x-request-id: %b\r\n" % new_request_id().encode())
    head += [b"%b: %b\r\n" % field for field in default_headers]
    head.append(b"content-length: %d\r\n\r\n" % len(body))
    return b"".join(head) + body


class RouterProtocol(Parting):
    """Give it to uvicorn as `http=RouterProtocol`. Written against uvicorn 0.54; see test_protocol.py."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._generates = hasattr(self.app, "generate") and self.limit_concurrency is None
        """The application is an `api.cycle.Generates`."""
        self._streams: deque[TransportStream] = deque()
        self._held = bytearray()
        self._in_head = True
        self._head_begun = False
        """Only a head that one read did not bring whole is watched by a timer."""
        self._head_bytes = 0
        """Bytes that came and are no body: of a head, of trailers, of chunk framing beyond what is usual."""
        self._too_large = False
        self._refused = False
        self._rests_since: float | None = None
        """Loop time since when the connection waits for a request, None while it does not."""

    # --- asyncio ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.watch_head()

    def eof_received(self) -> None:
        """A client that sends no more is taken as gone: its legs end now, not when a write fails."""
        if self._streams:
            self._lose_streams()
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_head_timer()
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
        if self._head_begun and self.head_timer is None:
            self.watch_head()
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
        """Makes no scope yet: which one, the target tells."""
        self.begin_head()
        self._in_head = self._head_begun = True

    def on_headers_complete(self) -> None:
        self._head_begun = False
        if self.head_timer is not None:
            self.stop_head_timer()
        if self._head_bytes > HEAD_LIMIT and _head_size(self.url, self.headers) > HEAD_LIMIT:
            self._too_large = True
            raise BadHead
        version = self.parser.get_http_version()
        if version != "1.1" or self.hosts != 1 or self.fault is not None:
            self.check_head(version)
        path = DATA_PATHS.get(self.url)
        generates = path is not None and self._generates and self.parser.get_method() == b"POST"
        if not generates:
            self.check_target()
        self._in_head = False
        self._head_bytes = 0
        if path is not None and generates:
            self._begin_generating(path, is_1_1=version == "1.1")
        else:
            self._begin_asgi()
        self.headers = []  # Trailers go into a list that nobody reads: they are no headers.

    def _begin_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        super().on_headers_complete()
        if self.leaving:
            self.cycle.keep_alive = False
        stream = TransportStream(self, self.cycle, chunked=self.scope["http_version"] != "1.0")
        self._streams.append(stream)
        self.scope["extensions"] = {EXTENSION: stream}  # type: ignore[dict-item]

    def _begin_generating(self, path: str, *, is_1_1: bool) -> None:
        """What uvicorn's own does, for a request whose target is known."""
        before = self.cycle
        keep_alive = is_1_1 and not self.leaving and self.parser.should_keep_alive()
        scope = {"path": path, "headers": self.headers}
        self.cycle = cycle = GeneratingCycle(self, scope, keep_alive=keep_alive)
        stream = TransportStream(self, cycle, chunked=is_1_1)
        self._streams.append(stream)
        ready: Any = (cycle, stream)  # What uvicorn calls the application is what the cycle runs.
        if before is None or before.response_complete:
            self._start_asgi_task(*ready)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft(ready)

    def on_body(self, body: bytes) -> None:
        """As uvicorn's own, which asks at each piece for an upgrade: none is ever made here."""
        left = self._head_bytes - _FRAMING * len(body)
        self._head_bytes = left if left > 0 else 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if cycle.message_event is not NOBODY_WAITS:
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.more_body = False
        if cycle.message_event is not NOBODY_WAITS:
            cycle.message_event.set()

    # --- uvicorn ---

    def on_response_complete(self) -> None:
        """As uvicorn's own, but for the time of rest."""
        if self._streams:
            self._streams.popleft().detach()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
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
        elif self.fault is not None:
            self._answer(*self.fault)
        elif self._too_large:
            what = "request head is" if self._in_head else "body's trailers or chunk extensions are"
            self._answer(431, f"The {what} over {HEAD_LIMIT} bytes.")
        else:
            self._answer(400, msg)

    def _lose_streams(self) -> None:
        while self._streams:
            self._streams.popleft().on_lost()

    # --- keep-alive: one timer outlasts many requests, where uvicorn's starts and stops one for each ---

    def _rest(self) -> None:
        self._rests_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = task

    def _unset_keepalive_if_required(self) -> None:
        """Uvicorn calls it at any byte that comes."""
        self._rests_since = None

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._rests_since is None:
            return
        left = self._rests_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
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
        """Any byte ends the idle time, also of a body behind its answer: nothing would begin it again."""
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and self.head_timer is None and self._rests_since is None:
            self._rest()

    def _go_on(self) -> None:
        if self._held and not self._answering() and not self.transport.is_closing():
            data = bytes(self._held)
            self._held.clear()
            self.data_received(data)

    # --- heads ---

    def _refuse_head(self) -> None:
        if not self._refused and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def _answer(self, status: int, message: str) -> None:
        self.transport.write(_refusal(status, message, default_headers=self.server_state.default_headers))
        self._refused = True
        self._lose_streams()
        self._linger()

    def _linger(self) -> None:
        """Closing on a client that still sends would reset the connection under the answer."""
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)
