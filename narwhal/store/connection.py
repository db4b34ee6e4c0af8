"""One connection to one Redis server, with the client settings of cluster.md section 4.

redis-py's own defaults needed 59 s to give up on a frozen server. Here every call has its own deadline,
nothing is retried, and a command that was cancelled or got no answer takes its connection with it: a
leftover reply must never be read as the next one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from redis import exceptions as driver
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from narwhal.errors import StoreDamaged, StoreError, StoreProtocolError, StoreUnreachable
from narwhal.model.settings import StoreAddress
from narwhal.store.address import Addresses, Place, Whereabouts
from narwhal.store.faults import ELSEWHERE, kind_of, translated

R = TypeVar("R")

SOCKET_TIMEOUT_S: Final = 0.8
CONNECT_TIMEOUT_S: Final = 0.5
TCP_USER_TIMEOUT_MS: Final = 1500


@dataclass(frozen=True, slots=True)
class Waits:
    """How long one attempt waits at most, in seconds: for the connection, then for each reply."""

    connect_s: float = CONNECT_TIMEOUT_S
    reply_s: float = SOCKET_TIMEOUT_S


DEFAULT_WAITS: Final = Waits()


@dataclass(frozen=True, slots=True)
class Login:
    """`client_name` is shown by CLIENT LIST: `narwhal-<router id>`."""

    client_name: str = "narwhal"
    password: str = ""


class _Cut(AbstractConnection):
    """Closes its socket at once, also where redis-py itself gives the connection up.

    redis-py's close first sends what is buffered, a command that nobody waits for any more, and over TLS
    waits for the server's goodbye, which a hung one never says.
    """

    async def disconnect(self, *positional: Any, **named: Any) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(*positional, **named)


class _TcpConnection(_Cut, Connection):
    pass


class _UnixConnection(_Cut, UnixDomainSocketConnection):
    pass


class _NamedSSLConnection(_Cut, SSLConnection):
    """TLS to an address that was resolved before: the certificate must still be the name's."""

    server_name = ""

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "server_hostname": self.server_name}


class RedisConnection:
    """One socket of one user (lease, data or feed: never shared), reconnected on the next call.

    Used on one loop. Calls wait for each other; the wait counts in their deadlines.
    """

    def __init__(
        self,
        address: StoreAddress,
        login: Login | None = None,
        *,
        names: Whereabouts | None = None,
        waits: Waits = DEFAULT_WAITS,
    ) -> None:
        """`names`: who knows where the server is, in place of the address's own name."""
        if address.service and names is None:
            raise StoreProtocolError("a Sentinel address needs somebody who asks the Sentinels")
        self._address = address
        self._login = login or Login()
        self.waits = waits
        self._names: Whereabouts | None = names
        if names is None and not address.socket_path:
            self._names = Addresses(*address.hosts[0])
        self._socket: AbstractConnection | None = None
        self._place: Place = ("", 0)
        self._turn = asyncio.Lock()

    @property
    def place(self) -> Place:
        """Where the last connection went; ("", 0) before the first, and on a Unix socket."""
        return self._place

    def risks(self) -> tuple[str, ...]:
        """Warning sentences about those who tell where the server is, as far as they were asked."""
        return () if self._names is None else self._names.risks()

    async def command(self, *words: str | bytes | int, timeout_s: float) -> Any:
        """One plain command and its reply (bytes, int, None or lists of them)."""

        async def send(wire: AbstractConnection) -> Any:
            await wire.send_command(*words)
            return await wire.read_response()

        return await self.exchange(str(words[0]), send, timeout_s=timeout_s)

    async def exchange(
        self, what: str, talk: Callable[[AbstractConnection], Awaitable[R]], *, timeout_s: float
    ) -> R:
        """Runs `talk` on the connected socket. `what` names it in errors.

        Raises StoreUnreachable where no answer came within `timeout_s` (also: refused, closed, loading,
        read-only) and StoreProtocolError for an error reply that will not go away by itself.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async with self._turn:
                    return await self._talk(what, talk)
        except TimeoutError:
            if self._names is not None:
                self._names.refresh()
            raise StoreUnreachable(f"{what}: no answer within {timeout_s:g} s from {self._where}") from None

    async def _talk(self, what: str, talk: Callable[[AbstractConnection], Awaitable[R]]) -> R:
        try:
            with _heeding_cancellation():
                return await talk(await self._connected())
        except driver.ResponseError as error:
            if kind_of(error) in ELSEWHERE:
                await self._lose()
            raise translated(what, error) from error
        except StoreDamaged:  # every reply was read: the connection is sound
            raise
        except (driver.RedisError, OSError) as error:
            await self._drop()
            raise self._no_answer(what, error) from error
        except BaseException:
            await self._drop()
            raise

    async def _lose(self) -> None:
        """The master is somewhere else: drops the connection and looks for it beside the calls."""
        await self._drop()
        if self._names is not None:
            self._names.failed()

    def _no_answer(self, what: str, error: Exception) -> StoreError:
        if kind_of(error):  # LOADING and failed AUTH are connection errors to redis-py
            return translated(what, error)
        return StoreUnreachable(f"{what}: {error or type(error).__name__} ({self._where})")

    async def _connected(self) -> AbstractConnection:
        if self._socket is not None and self._socket.is_connected and self._in_place():
            return self._socket
        await self._drop()
        wire = await self._new_socket()
        self._socket = wire
        try:
            await wire.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            if self._names:
                self._names.failed()
            raise
        return wire

    def _in_place(self) -> bool:
        return self._names is None or self._names.holds(self._place)

    async def _new_socket(self) -> AbstractConnection:
        settings = _settings(self._address, self._login, waits=self.waits)
        if self._names is None:
            return _UnixConnection(path=self._address.socket_path, **settings)
        self._place = await self._names.current()
        settings |= {"host": self._place[0], "port": self._place[1]}
        settings |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive_options()}
        if not self._address.tls:
            return _TcpConnection(**settings)
        secure = _NamedSSLConnection(**settings)
        secure.server_name = self._address.hosts[0][0]
        return secure

    async def _drop(self) -> None:
        wire, self._socket = self._socket, None
        if wire is not None:
            await wire.disconnect(nowait=True)

    @property
    def _where(self) -> str:
        if self._names is None:
            return self._address.socket_path
        return self._names.name

    async def aclose(self) -> None:
        await self._drop()
        if self._names is not None:
            await self._names.aclose()


@contextlib.contextmanager
def _heeding_cancellation() -> Iterator[None]:
    """Raises the cancellation that came inside the block and was lost there.

    redis-py waits with `asyncio.wait_for`, which before Python 3.12 forgets a cancellation that arrives
    together with the result or an error: a cancelled task would go on, and a deadline would pass unnoticed.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


def _settings(address: StoreAddress, login: Login, *, waits: Waits) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "db": address.db,
        "username": address.username or None,
        "password": login.password or None,
        "client_name": login.client_name,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": waits.reply_s,
        "socket_connect_timeout": waits.connect_s,
    }
    return settings | _SILENT


def _silent() -> dict[str, None]:
    """No CLIENT SETINFO: a round trip for nothing, and one more command to permit."""
    known = inspect.signature(AbstractConnection.__init__).parameters
    return {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}


_SILENT: Final = _silent()


def _keepalive_options() -> dict[int, int]:
    """Linux: unacknowledged data ends the connection after 1.5 s. Elsewhere the call's deadline has to do."""
    wanted = {
        "TCP_USER_TIMEOUT": TCP_USER_TIMEOUT_MS,
        "TCP_KEEPIDLE": 1,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": 2,
    }
    return {getattr(socket, name): value for name, value in wanted.items() if hasattr(socket, name)}
