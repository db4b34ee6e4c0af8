"""Many streaming clients at once, light enough that they do not hide what the router does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

from tests.support.wire import request_bytes

_END = b"\r\n0\r\n\r\n"


class Viewer(asyncio.Protocol):
    """One client: sends its request and keeps every byte until the chunked body or the connection ends."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.begun = asyncio.get_running_loop().create_future()
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.begun.done():
            self.begun.set_result(None)
        if self.received.endswith(_END):
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.begun, self.over):
            if not future.done():
                future.set_result(None)

    def leave(self) -> None:
        """Close at once, whatever has come."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def tokens(self) -> int:
        return self.received.count(b'"finish_reason":')

    @property
    def complete(self) -> bool:
        return self.received.endswith(_END) and b"data: [DONE]\n\n" in self.received


async def view(url: str, body: object, path: str = "/v1/completions") -> Viewer:
    """Connect one viewer."""
    parts = urlsplit(url)
    request = request_bytes("POST", path, body=body)
    loop = asyncio.get_running_loop()
    _, viewer = await loop.create_connection(lambda: Viewer(request), parts.hostname, parts.port)
    return viewer


async def all_over(viewers: Sequence[Viewer]) -> None:
    await asyncio.gather(*(viewer.over for viewer in viewers))
