"""What RFC 9112 demands of a request head and llhttp lets pass.

| head | answer | why |
| --- | --- | --- |
| HTTP/1.1 without `Host`, any with two, a value that is no host | 400 | section 3.2: readers may differ |
| `Transfer-Encoding` in HTTP/1.0 | 400 | section 6.1: another reader may not know it |
| a last transfer coding that is not `chunked` | 400 | section 6.3: nobody can tell where the body ends |
| a coding before `chunked` | 501 | section 6.1: none is spoken here |
| a target with a fragment, `*` without OPTIONS, CONNECT | 400 | section 3.2: no target of such a request |
| HTTP/0.9, HTTP/2.0 | 505 | section 2.3: another grammar |

What llhttp refuses by itself gets 400: two lengths, a length beside chunks, folded lines, bare CR, a blank
before a colon and the like. tests/integration/test_request_heads.py has them all.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
"""RFC 3986, section 3.2.2; empty where the target has no host."""
_WATCHED = frozenset((b"expect", b"transfer-encoding"))


class BadHead(Exception):
    """Goes through the parser, which wraps it; `CheckedHeads.fault` has what the client is told."""


class CheckedHeads(HttpToolsProtocol):
    """The part of a connection that reads heads. Each begins with `begin_head` and ends
    with `check_head` and `check_target`."""

    HEAD_TIMEOUT_S = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fault: tuple[int, str] | None = None
        """Status and sentence of the first thing that is wrong with the request at hand."""
        self.hosts = 0
        """`Host` lines of the head at hand."""
        self._good_host = b""
        """A connection names the same host in request after request."""
        self._coded = False
        self.head_timer: asyncio.TimerHandle | None = None

    def watch_head(self) -> None:
        """Closes the connection unless the head is there in time."""
        self.head_timer = self.loop.call_later(self.HEAD_TIMEOUT_S, self.transport.close)

    def stop_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def begin_head(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = self._coded = False
        self.hosts, self.fault = 0, None

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's own, and notes what `check_head` asks for."""
        name = name.lower()
        if name == b"host":
            self.hosts += 1
            if value != self._good_host:
                self._note_host(value)
        elif name in _WATCHED:
            self._note(name, value)
        self.headers.append((name, value))

    def _note_host(self, value: bytes) -> None:
        if _HOST.fullmatch(value):
            self._good_host = value
        else:
            self._wrong(400, "The Host header is no host.")

    def _note(self, name: bytes, value: bytes) -> None:
        value = value.lower()
        if name == b"expect":
            self.expect_100_continue = value == b"100-continue"
            return
        self._coded = True
        *before, last = (coding.strip() for coding in value.split(b","))
        if last != b"chunked":
            self._wrong(400, "The last transfer coding must be chunked.")
        elif before:
            self._wrong(501, "No transfer coding but chunked is spoken here.")

    def check_head(self, version: str) -> None:
        """Raises BadHead. HTTP/1.1, one host and no fault so far are well: callers ask that first."""
        if version == "1.1":
            if self.hosts != 1:
                self._wrong(400, "HTTP/1.1 needs one Host header.")
        elif version != "1.0":
            self._wrong(505, f"HTTP/{version} is not spoken here: HTTP/1.1 and 1.0 are.")
        elif self.hosts > 1:
            self._wrong(400, "There are several Host headers.")
        elif self._coded:
            self._wrong(400, "HTTP/1.0 has no Transfer-Encoding.")
        self._raise()

    def check_target(self) -> None:
        """Raises BadHead. A target that is a whole URL is served like its path."""
        method = self.parser.get_method()
        if b"#" in self.url:
            self._wrong(400, "The request target has a fragment.")
        elif self.url == b"*" and method != b"OPTIONS":
            self._wrong(400, "The request target * is for OPTIONS.")
        elif method == b"CONNECT":
            self._wrong(400, "This is no proxy.")
        self._raise()

    def _raise(self) -> None:
        if self.fault is not None:
            raise BadHead

    def _wrong(self, status: int, message: str) -> None:
        if self.fault is None:
            self.fault = (status, message)
