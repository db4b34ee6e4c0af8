"""Uvicorn's request cycle for generating requests: its state without the parts that plain ASGI needs.

They are nearly all the traffic, and what is made for each costs more than what it does (docs/performance.md):
no event until somebody must wait for a body, no scope of everything, no coroutine around the handler's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

if TYPE_CHECKING:
    from narwhal.api.client_stream import TransportStream
    from narwhal.api.protocol import RouterProtocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]


class Generates(Protocol):
    """An ASGI application that serves generating requests on a way of their own."""

    def generate(
        self, scope: Scope, receive: Receive, *, stream: TransportStream
    ) -> Coroutine[Any, Any, None]:
        """Serves one request to its end, whatever happens. `scope` has `path` and `headers` alone."""


class NobodyWaits:
    """Stands for an `asyncio.Event` that nobody waits for."""

    def set(self) -> None:
        pass


NOBODY_WAITS = cast(asyncio.Event, NobodyWaits())


class GeneratingCycle(RequestResponseCycle):
    """Of the base only `receive` is used: the response goes through a `TransportStream`.

    Uvicorn's protocol reads and writes `more_body`, `body`, `disconnected`, `keep_alive` and
    `response_complete`; it sets `message_event`.
    """

    def __init__(
        self, protocol: RouterProtocol, scope: MutableMapping[str, Any], *, keep_alive: bool
    ) -> None:
        self.scope = scope  # type: ignore[assignment]
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.default_headers = protocol.server_state.default_headers
        self.message_event = NOBODY_WAITS
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.body = bytearray()
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.chunked_encoding = None
        app: Any = protocol.app
        generates: Generates = app
        self._generate = generates.generate

    def run_asgi(self, app: Any) -> Coroutine[Any, Any, None]:
        """What the request's task runs. `app` is the request's stream."""
        scope: Any = self.scope
        return self._generate(scope, self.receive, stream=app)

    async def receive(self) -> Any:
        """As the base, which waits for the event even when all is here."""
        if self.message_event is NOBODY_WAITS:
            self.message_event = asyncio.Event()
            if self.body or not self.more_body:
                self.message_event.set()
        return await super().receive()
