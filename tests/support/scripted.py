"""An engine that says exactly what a test tells it to, byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from narwhal.model.engine import EngineSpec
from tests.support.processes import LIVENESS_S

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(status: int, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Line:
    """One connection to the scripted engine. `number` counts connections from 0."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> tuple[str, bytes]:
        """Head and body of the next request. Raises IncompleteReadError when the client has gone."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
        body = await self.reader.readexactly(int(length[0].split(":")[1])) if length else b""
        return head, body

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Line], Awaitable[None]]


@dataclass
class ScriptedEngine:
    """`gone`: numbers of connections that the client has closed; `lines`: all there were."""

    spec: EngineSpec
    lines: list[Line] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)


@asynccontextmanager
async def scripted_engine(
    script: Script, iid: str = "e0", *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedEngine]:
    """Runs `script` for each connection; when it returns, the connection is kept until the client ends it."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        line = Line(len(engine.lines), reader, writer)
        engine.lines.append(line)
        try:
            await script(line)
            while await reader.read(65536):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            return
        finally:
            engine.gone.append(line.number)
            writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    scheme, name = "https" if tls else "http", f"[{host}]" if ":" in host else host
    engine = ScriptedEngine(EngineSpec(iid, f"{scheme}://{name}:{port}"))
    try:
        yield engine
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], object], what: str) -> None:
    """Gives the loop turns until `condition` holds; fails after the liveness bound."""
    deadline = asyncio.get_running_loop().time() + LIVENESS_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.005)
