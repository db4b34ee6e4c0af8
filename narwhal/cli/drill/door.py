"""A TCP relay between one router and the store: shut it, and the router is cut off; lead it elsewhere, and
it is a failover behind one address."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

CHUNK: Final = 65536


class Door:
    """Listens on a free port of the loopback address. While shut, bytes stay where they are and new
    connections get no answer."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def shut(self) -> None:
        self._open.clear()

    def reopen(self) -> None:
        self._open.set()

    def lead_to(self, port: int) -> None:
        """Ends every connection; new ones go to that port."""
        self._target_port = port
        for relay in self._relays:
            relay.cancel()

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        relays = list(self._relays)
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            try:
                await _first(self._pump(reader, far_writer), self._pump(far_reader, writer))
            finally:
                far_writer.close()
        except (OSError, asyncio.CancelledError):
            pass  # either side has gone, or the door is led elsewhere: the connection ends with it
        finally:
            self._relays.discard(task)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()


async def _first(*works: object) -> None:
    """Until one of them ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
