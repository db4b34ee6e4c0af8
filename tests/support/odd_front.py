"""A door in front of an engine or a sidecar that answers some paths in its place, with any bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

READ = 65536


class OddFront:
    """`told`: path to the body of a 200 that is answered for it; everything else is passed on."""

    def __init__(self, target: int) -> None:
        self.told: dict[str, bytes] = {}
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            if path in self.told:
                body = self.told[path]
                fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                writer.write(f"HTTP/1.1 200 OK\r\n{fields}connection: close\r\n\r\n".encode() + body)
                await writer.drain()
            else:
                await self._pass_on(head, reader, writer)
        writer.close()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        beyond, to_beyond = await asyncio.open_connection("127.0.0.1", self._target)
        line, rest = head.split(b"\r\n", 1)
        to_beyond.write(line + b"\r\nconnection: close\r\n" + rest)
        there = asyncio.create_task(_copy(reader, to_beyond))
        await _copy(beyond, writer)
        there.cancel()
        to_beyond.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(READ):
            writer.write(data)
            await writer.drain()


@contextmanager
def odd_front(target: int) -> Iterator[OddFront]:
    front = OddFront(target)
    try:
        yield front
    finally:
        front.close()
