"""A plain HTTP/1.1 client on asyncio streams that shows what came over the wire, good or bad.

It shares nothing with the product's own parsers, so that both cannot be wrong in the same way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.support.processes import LIVENESS_S

T = TypeVar("T")


@dataclass(slots=True)
class Answer:
    """One answer. `complete`: its body ended as its framing says; `chunks`: the HTTP chunks as sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    complete: bool = False
    chunks: list[bytes] = field(default_factory=list)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of each event, `[DONE]` included, whatever the line ends; comments are left out."""
        text = self.body.decode().replace("\r\n", "\n").replace("\r", "\n")
        events = (
            [line for line in event.split("\n") if line.startswith("data: ")] for event in text.split("\n\n")
        )
        return ["\n".join(line.removeprefix("data: ") for line in lines) for lines in events if lines]

    @property
    def documents(self) -> list[Any]:
        """The JSON events."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def text(self) -> str:
        """What a completions stream says in all."""
        choices = [choice for event in self.documents for choice in event.get("choices", ())]
        return "".join(choice["text"] for choice in choices)

    @property
    def error(self) -> Mapping[str, Any]:
        """The error object of the body."""
        error = self.json()["error"]
        assert isinstance(error, dict)
        return error


class Wire:
    """One connection. Raises OSError and EOFError as they happen."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url: str) -> Wire:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def request(self, method: str, path: str, *, body: Any = None, **headers: str) -> None:
        """Send one request; a body that is not bytes is sent as JSON."""
        await self.send(request_bytes(method, path, body=body, **headers))

    async def head(self) -> Answer:
        """Read an answer's head."""
        raw = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Answer(int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs})

    async def rest(self, answer: Answer) -> Answer:
        """Read the body of a head; an early end leaves `complete` False."""
        try:
            if answer.headers.get("transfer-encoding") == "chunked":
                while await self.chunk(answer):
                    pass
            elif (length := answer.headers.get("content-length")) is not None:
                answer.body = await self._reader.readexactly(int(length))
            else:
                answer.body = await self._reader.read()
            answer.complete = True
        except asyncio.IncompleteReadError as error:
            answer.body += error.partial if not answer.chunks else b""
        except ConnectionError:
            answer.complete = False
        return answer

    async def chunk(self, answer: Answer) -> bytes:
        """Read one chunk into the answer; empty at the end of the body."""
        size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
        data = await self._reader.readexactly(size + 2)
        if size:
            answer.chunks.append(data[:-2])
            answer.body += data[:-2]
        return data[:-2]

    async def answer(self) -> Answer:
        return await self.rest(await self.head())

    async def everything_until(self, end: bytes) -> bytes:
        """What comes, up to and with these bytes."""
        data = bytearray()
        while not data.endswith(end):
            more = await self._reader.read(1 << 20)
            assert more, "closed before that"
            data += more
        return bytes(data)

    async def everything(self) -> bytes:
        """What comes until the other side closes."""
        data = b""
        try:
            while more := await self._reader.read(65536):
                data += more
        except ConnectionError:
            pass
        return data

    async def ended(self) -> bool:
        """Wait until the other side closes."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Close at once; unread data makes that a reset."""
        self.writer.transport.abort()


def request_bytes(method: str, path: str, *, body: Any = None, **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: test", f"content-length: {len(data)}"]
    if data:
        lines.append("content-type: application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + data


async def ask(url: str, path: str, *, body: Any = None, method: str = "", **headers: str) -> Answer:
    """One exchange on a connection of its own: GET without a body, POST with one."""
    wire = await Wire.open(url)
    try:
        await wire.request(method or ("GET" if body is None else "POST"), path, body=body, **headers)
        return await wire.answer()
    finally:
        wire.close()


def play(scene: Coroutine[Any, Any, T], *, within_s: float = LIVENESS_S) -> T:
    """Run one async scene; a hang fails."""

    async def bounded() -> T:
        async with asyncio.timeout(within_s):
            return await scene

    return asyncio.run(bounded())


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a state that tells nobody when it comes true."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
