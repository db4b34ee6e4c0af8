"""Several simulated engines on one event loop, each with its serving port and its side channel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from narwhal.sim.engine import SimEngine
from narwhal.sim.http import Connection, Exchange
from narwhal.sim.routes import Routes
from narwhal.sim.settings import SimSettings
from narwhal.sim.wheel import Wheel

_BACKLOG = 4096
_LAST_BYTES_S = 2.4
_POLL_S = 0.01


class Listener:
    """One port. It keeps its number while closed, and opens on it again."""

    def __init__(self, host: str, port: int, *, handler: Callable[[Exchange], None]) -> None:
        self._host = host
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._opening: asyncio.Task[None] | None = None
        self.connections: set[Connection] = set()
        self.port = port
        self.open()

    def open(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        if self._socket is not None:
            return
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setblocking(False)
        try:
            self._socket.bind((self._host, self.port))
            self._socket.listen(_BACKLOG)
        except OSError:
            self._socket.close()
            self._socket = None
            raise
        self.port = self._socket.getsockname()[1]
        # Connects queue in the backlog from here on; accepting begins a turn later.
        self._opening = asyncio.get_running_loop().create_task(self._serve(self._socket))

    def close(self) -> None:
        """Refuse connections from now on; idle ones are closed, busy ones after their answer."""
        if self._socket is None:
            return
        if self._server is not None:
            self._server.close()
        elif self._opening is not None:
            self._opening.cancel()
        self._socket.close()
        self._server = self._socket = None
        for connection in list(self.connections):
            connection.end()

    def drop_all(self) -> None:
        """Close, and cut what is still open."""
        self.close()
        for connection in list(self.connections):
            connection.abort()

    async def _serve(self, listening: socket.socket) -> None:
        def accepted() -> Connection:
            return Connection(self._handler, self.connections, wanted=lambda: self._socket is listening)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(accepted, sock=listening, backlog=_BACKLOG)
        if self._socket is listening:
            self._server = server
        else:
            server.close()


class Stand:
    """One engine with its two listeners."""

    def __init__(self, engine: SimEngine, host: str, *, ports: tuple[int, int]) -> None:
        routes = Routes(engine)
        self.engine = engine
        self._host = host
        self._serving = Listener(host, ports[0], handler=routes.serving)
        try:
            self._side = Listener(host, ports[1], handler=routes.side)
        except OSError:
            self._serving.close()
            raise
        engine.listener = self._listen

    @property
    def port(self) -> int:
        return self._serving.port

    @property
    def side_port(self) -> int:
        return self._side.port

    @property
    def url(self) -> str:
        return f"http://{_bracketed(self._host)}:{self.port}"

    @property
    def side_url(self) -> str:
        return f"http://{_bracketed(self._host)}:{self.side_port}"

    @property
    def busy(self) -> bool:
        """Whether a client still waits for bytes of ours."""
        return any(not connection.drained for connection in self._serving.connections)

    def kill(self) -> None:
        """As kill -9 leaves it: both ports closed, every connection cut."""
        self.engine.vanish()
        self._serving.drop_all()
        self._side.drop_all()

    def _listen(self, is_open: bool) -> None:
        if is_open:
            self._serving.open()
        elif self.engine.core_dead:
            self._serving.drop_all()
        else:
            self._serving.close()


class Rack:
    """The engines of one process. They find each other's KV blocks in memory, by host and port.

    Make it on the running loop. `advertise` is the host that descriptors carry (default: `host`).
    """

    def __init__(self, *, host: str = "127.0.0.1", advertise: str = "") -> None:
        self._host = host
        self._advertise = advertise or host
        self._wheel = Wheel(asyncio.get_running_loop())
        self._by_side: dict[tuple[str, int], SimEngine] = {}
        self.stands: list[Stand] = []

    def add(self, settings: SimSettings, *, port: int = 0, side_port: int = 0) -> Stand:
        """Start one engine (0: any free port). Raises OSError when a port cannot be had."""
        engine = SimEngine(settings, self._wheel, find=self._find)
        stand = Stand(engine, self._host, ports=(port, side_port))
        engine.address = (self._advertise, stand.side_port)
        self._by_side[engine.address] = engine
        self.stands.append(stand)
        return stand

    async def shut_down(self) -> None:
        """SIGTERM: every engine ends its work by its own rules; at most 2.4 s for the last bytes."""
        for stand in self.stands:
            stand.engine.shut_down()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LAST_BYTES_S
        # Write buffers tell nobody that they are empty.
        while loop.time() < deadline and any(stand.busy for stand in self.stands):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        self.close()

    def close(self) -> None:
        """Cut everything at once."""
        for stand in self.stands:
            stand.kill()
        self._wheel.close()

    def _find(self, host: str, port: int) -> SimEngine | None:
        engine = self._by_side.get((host, port))
        return None if engine is None or engine.core_dead else engine


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
