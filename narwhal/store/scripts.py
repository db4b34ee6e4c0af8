"""The Lua operations: their files, and what runs them.

The stores (`lease.py`, `handoff.py`, `registry.py`) speak to a `ScriptRunner`: the real one sends
EVALSHA over one connection, the in-memory one (`memory.py`) applies the same operations to a model of
the server. Both give the same reply arrays.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from narwhal.errors import StoreDamaged, StoreProtocolError, StoreUnreachable
from narwhal.store.connection import RedisConnection
from narwhal.store.faults import ReplyKind, kind_of, translated

Argument = str | bytes | int
Reply = Sequence[bytes]
Needs = Callable[[Reply], int]
"""Reply -> number of replicas that must have the write which it answers; 0: none."""

CONFIRM_SLACK_S = 0.12
"""WAIT ends so long before the deadline: Redis looks at its clock ten times a second, and an answer, though
too small, keeps the connection."""

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
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument], needs: Needs, timeout_s: float
    ) -> Reply:
        """As `run`, for the writes that replicas must have before they count: acquire, renew, publish.

        The answer is given only when as many replicas as it `needs` have it, inside the same deadline, on
        the same socket; else it is StoreUnreachable, though the operation has happened.
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
            return await _told(wire, loaded, words=words)

        return await self._connection.exchange(script, talk, timeout_s=timeout_s)

    async def run_confirmed(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument], needs: Needs, timeout_s: float
    ) -> Reply:
        loaded = load(script)
        words: list[Argument] = [len(keys), *keys, *args]
        allowed_s = min(timeout_s, self._connection.waits.reply_s) - CONFIRM_SLACK_S
        until = asyncio.get_running_loop().time() + allowed_s

        async def talk(wire: AbstractConnection) -> tuple[Reply, int, int]:
            reply = await _told(wire, loaded, words=words)
            needed = needs(reply)
            return reply, needed, await _confirmed(wire, needed, until=until) if needed else 0

        reply, needed, confirmed = await self._connection.exchange(script, talk, timeout_s=timeout_s)
        if confirmed < needed:
            raise unconfirmed(script, confirmed, needed=needed)
        return reply

    async def aclose(self) -> None:
        await self._connection.aclose()


async def _told(wire: AbstractConnection, script: Script, *, words: Sequence[Argument]) -> Reply:
    """The script's reply. Raises StoreDamaged with the name of the key that holds what no router wrote."""
    try:
        return await _evaluated(wire, script, words=words)
    except ResponseError as error:
        problem = translated(script.name, error)
        if not isinstance(problem, StoreDamaged):
            raise
    keys = [str(word) for word in words[1 : 1 + int(words[0])]]
    wrong = [key for key in keys if await _is_of_another_type(wire, key)]
    raise StoreDamaged(f"{problem} (see {', '.join(wrong or keys)})")


_LOOKS: Final = {"epoch": ("GET",), "log": ("XRANGE", "-", "-"), "routers": ("ZRANGE", 0, 0)}
_LOOK_AT_HASH: Final = ("HGET", "-")


async def _is_of_another_type(wire: AbstractConnection, key: str) -> bool:
    """By a read that fits what routers keep there: a user of ours may not ask for the type."""
    command, *rest = _LOOKS.get(key.rpartition(":")[2], _LOOK_AT_HASH)
    try:
        await wire.send_command(command, key, *rest)
        await wire.read_response()
    except ResponseError as error:
        return kind_of(error) is ReplyKind.WRONGTYPE
    return False


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


async def _confirmed(wire: AbstractConnection, needed: int, *, until: float) -> int:
    """Replicas that have all that this socket wrote. WAIT counts for the socket that it is sent on: one that
    was lost in between must not be replaced, as redis-py would do by itself."""
    if not wire.is_connected:
        raise StoreUnreachable("the connection was lost between a write and its confirmation")
    left_ms = int((until - asyncio.get_running_loop().time()) * 1000)
    await wire.send_command("WAIT", needed, max(1, left_ms))
    reply = await wire.read_response()
    if not isinstance(reply, int):
        raise StoreProtocolError(f"WAIT gave an answer that cannot be read: {reply!r:.200}")
    return reply


def unconfirmed(script: str, confirmed: int, *, needed: int) -> StoreUnreachable:
    """The write has happened on the master; whether it outlives it nobody knows."""
    return StoreUnreachable(
        f"{script}: {confirmed} of {needed} replicas confirmed in time", kind=ReplyKind.NOREPLICAS
    )
