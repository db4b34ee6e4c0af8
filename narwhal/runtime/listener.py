"""The listening socket, and uvicorn on it without its signals: runtime owns those.

`uvicorn.Server.serve` raises a caught SIGTERM again at its end (exit status 143, and nothing after it
runs), so its parts are driven from here. Its main loop, ten wake-ups a second for the `date` header, is
not. The drain of streams happens before `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from narwhal.api.parting import Parting
from narwhal.api.protocol import RouterProtocol
from narwhal.errors import ConfigError

BACKLOG = 4096
KEEP_ALIVE_S = 75
CLOSE_S = 1
"""Seconds that connections get to close after the drain; what still runs then is cut."""


def bind(host: str, port: int, *, named_by: str = "--host") -> socket.socket:
    """A socket on `host:port` that does not listen yet. Raises ConfigError (exit 2) naming the address.

    `::` takes IPv4 too. `named_by`: the option that gave the host.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"{named_by} {host} cannot be resolved: {error.strerror or error}") from error
    except UnicodeError as error:  # what IDNA says of empty and overlong labels
        raise ConfigError(f"{named_by} {host} is no host name") from error
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


Headers = list[tuple[bytes, bytes]]


class DatedState(ServerState):
    """Headers of every response, made anew when one is asked for in another second than the last."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._second = -1
        self._headers: Headers = []
        super().__init__()

    @property
    def default_headers(self) -> Headers:
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._headers = [(b"date", formatdate(second, usegmt=True).encode())]
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: Headers) -> None:
        """The base class begins with none."""


def _protocol_of_one_server() -> type[RouterProtocol]:
    class ServedProtocol(RouterProtocol):
        """Has the `leaving` of this server's connections."""

    return ServedProtocol


class HttpServer:
    """Uvicorn with our protocol on one socket. `start` and `stop` once each."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        self._protocol = _protocol_of_one_server()
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=self._protocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                proxy_headers=False,
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_S,
                backlog=BACKLOG,
            )
        )
        self._server.server_state = DatedState()

    async def start(self) -> None:
        """Returns when connections are accepted."""
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._listener])

    def leave(self) -> None:
        """From now on every response is its connection's last: clients that go on go elsewhere."""
        self._protocol.leaving = True
        for connection in self._server.server_state.connections:
            if isinstance(connection, Parting):
                connection.leave()

    async def stop(self) -> None:
        """Answers what has come, closes listener and connections, cuts what is left after `CLOSE_S`."""
        if self._server.started:
            self.leave()
            waiting = self._waiting()
            for server in self._server.servers:
                server.close()
            for connection in waiting:
                await self._take(connection)
            await self._server.shutdown(sockets=[self._listener])
        self._listener.close()

    def _waiting(self) -> list[socket.socket]:
        """Connections that the kernel has made and nobody has accepted: closing the listener resets them."""
        found: list[socket.socket] = []
        with contextlib.suppress(OSError):  # no more, or none that can be had
            while len(found) < BACKLOG:
                found.append(self._listener.accept()[0])
        return found

    async def _take(self, connection: socket.socket) -> None:
        server, made = self._server, self._protocol

        def protocol() -> RouterProtocol:
            state = server.lifespan.state
            return made(config=server.config, server_state=server.server_state, app_state=state)

        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
