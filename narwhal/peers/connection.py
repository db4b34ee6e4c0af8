"""One connection to another router: small exchanges, one at a time, each read whole.

A general HTTP client costs two to five milliseconds a call (docs/adr/0010), and a standby asks four times a
second.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult

import httptools

from narwhal.names import Names

ANSWER_LIMIT = 256 * 1024
_PORTS = MappingProxyType({"http": 80, "https": 443})


class PeerTrouble(Exception):
    """No whole answer came over this connection. Stays inside this package."""


class PeerConnection:
    """Raises PeerTrouble or OSError. Belongs to one loop; `close` is immediate."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._body = bytearray()
        self._whole = False
        self._kept = True
        self._parser: Any = None

    @classmethod
    async def opened(cls, place: SplitResult, *, tls: Any, names: Names) -> PeerConnection:
        """`tls`: an SSL context for https, else None."""
        host, port = place.hostname or "", place.port or _PORTS[place.scheme]

        async def connect(address: str) -> PeerConnection:
            checked = host if tls else None
            return cls(*await asyncio.open_connection(address, port, ssl=tls, server_hostname=checked))

        return await names.reach(host, connect)

    @property
    def usable(self) -> bool:
        """The peer has not closed it, and the last answer did not end it."""
        return self._kept and not self._reader.at_eof() and not self._writer.is_closing()

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to one whole request."""
        self._body.clear()
        self._whole = False
        self._parser = httptools.HttpResponseParser(self)
        self._writer.write(request)
        while not self._whole:
            data = await self._reader.read(65536)
            if not data:
                raise PeerTrouble("closed before the end of the answer")
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise PeerTrouble(f"no HTTP answer: {error}") from error
        return self._parser.get_status_code(), bytes(self._body)

    def close(self) -> None:
        self._writer.transport.abort()

    # --- what the parser tells -----------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > ANSWER_LIMIT:
            raise PeerTrouble(f"an answer over {ANSWER_LIMIT} bytes")

    def on_message_complete(self) -> None:
        self._whole = True
        # Only here: afterwards the parser has forgotten the answer's head, and calls every one the last.
        self._kept = bool(self._parser.should_keep_alive())
