"""The Lua operations: their files, and what runs them.

The stores (`lease.py`, `handoff.py`, `registry.py`) speak to a `ScriptRunner`: the real one sends
EVALSHA over one connection, the in-memory one (`memory.py`) applies the same operations to a model of
the server. Both give the same reply arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from narwhal.errors import StoreProtocolError
from narwhal.store.connection import RedisConnection
from narwhal.store.faults import ReplyKind, kind_of

Argument = str | bytes | int
Reply = Sequence[bytes]

_HERE = Path(__file__).resolve().parent.parent


class ScriptRunner(Protocol):
    """Runs one operation by name, never in MULTI, never pipelined, without retries.

    Raises StoreUnreachable for *no answer* (the operation may still happen later) and
    StoreProtocolError for an answer that this version cannot read.
    """

    async def run(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> Reply: ...

    async def run_confirmed(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> Reply:
        """As `run`, for the writes that replicas must have before they count: acquire, renew, publish.

        The answer is given only when it is confirmed, inside the same deadline, on the same socket.
        """

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    body: str
    sha1: str


@cache
def lua_directory() -> Path:
    """`narwhal/lua` of an installed wheel, else `lua/` beside the package. Raises FileNotFoundError."""
    for directory in (_HERE / "lua", _HERE.parent / "lua"):
        if (directory / "lease_acquire.lua").is_file():
            return directory
    raise FileNotFoundError(f"no Lua scripts in {_HERE / 'lua'} or {_HERE.parent / 'lua'}")


@cache
def load(name: str) -> Script:
    """The script of that name. Raises FileNotFoundError."""
    body = (lua_directory() / f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest())


class RedisRunner:
    """The `ScriptRunner` on one connection: EVALSHA, on NOSCRIPT the body, inside the same deadline."""

    __slots__ = ("_connection",)

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def run(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> Reply:
        loaded = load(script)
        words: list[Argument] = [len(keys), *keys, *args]

        async def talk(wire: AbstractConnection) -> Reply:
            return await _evaluated(wire, loaded, words=words)

        return await self._connection.exchange(script, talk, timeout_s=timeout_s)

    async def run_confirmed(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> Reply:
        """One server: its own answer confirms. Replicas are asked here, inside the same exchange."""
        return await self.run(script, keys, args=args, timeout_s=timeout_s)

    async def aclose(self) -> None:
        await self._connection.aclose()


async def _evaluated(wire: AbstractConnection, script: Script, *, words: Sequence[Argument]) -> Reply:
    try:
        await wire.send_command("EVALSHA", script.sha1, *words)
        reply = await wire.read_response()
    except ResponseError as error:
        if kind_of(error) is not ReplyKind.NOSCRIPT:
            raise
        await wire.send_command("EVAL", script.body, *words)
        reply = await wire.read_response()
    if not isinstance(reply, list) or not reply:
        raise StoreProtocolError(f"{script.name} gave an answer that cannot be read: {reply!r:.200}")
    return reply
