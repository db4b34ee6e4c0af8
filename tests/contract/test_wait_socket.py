"""WAIT counts for the socket that wrote: a new one would count replicas that never got the write."""

from __future__ import annotations

import asyncio

import pytest

from narwhal.errors import StoreUnreachable
from narwhal.model.settings import StoreAddress
from narwhal.store.connection import RedisConnection
from narwhal.store.scripts import RedisRunner, Reply


class HangingUp:
    """A server that answers a script and closes the connection; on the next one it answers WAIT with 1."""

    def __init__(self) -> None:
        self.connections = 0
        self.waits = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while command := await self._command(reader):
            answer = b"+OK\r\n"
            if command == b"EVALSHA":
                answer = b"*1\r\n$2\r\nOK\r\n"
            elif command == b"WAIT":
                self.waits += 1
                answer = b":1\r\n"
            writer.write(answer)
            await writer.drain()
            if command == b"EVALSHA":
                break
        writer.close()

    async def _command(self, reader: asyncio.StreamReader) -> bytes:
        words = []
        head = await reader.readline()
        for _ in range(int(head[1:] or 0)):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        return words[0].upper() if words else b""


async def _write(server: HangingUp, *, lose: bool = False) -> object:
    """One write that one replica must confirm. `lose`: its socket is found lost before WAIT is sent."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    connection = RedisConnection(StoreAddress(hosts=(("127.0.0.1", port),)))
    runner = RedisRunner(connection)

    def needs(reply: Reply) -> int:
        wire = connection._socket
        if lose and wire is not None:
            wire._writer.close()  # type: ignore[attr-defined]
            wire._reader = wire._writer = None  # type: ignore[attr-defined]
            assert not wire.is_connected
        return 1

    try:
        return await runner.run_confirmed("lease_renew", (), args=(), needs=needs, timeout_s=3.0)
    finally:
        await runner.aclose()
        listener.close()


async def test_a_write_whose_socket_ends_before_wait_has_no_answer() -> None:
    server = HangingUp()
    with pytest.raises(StoreUnreachable):
        await _write(server)
    assert (server.connections, server.waits) == (1, 0)


async def test_a_reconnect_between_script_and_wait_is_noticed() -> None:
    """redis-py connects anew by itself on the next send: WAIT would count replicas on another socket."""
    server = HangingUp()
    with pytest.raises(StoreUnreachable, match="between a write and its confirmation"):
        await _write(server, lose=True)
    assert (server.connections, server.waits) == (1, 0)
