"""`GET /health` and `GET /ready`: read from memory, no I/O (http-api.md sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from narwhal.api.documents import health_body, ready_body
from narwhal.api.envelope import Answer, json_answer
from narwhal.model.control import Health, Readiness

ROUTER_HEADER = b"x-narwhal-router"
"""A standby's ID on its polls of the owner (narwhal.peers.http sends it)."""
RETRY_AFTER = {"retry-after": "1"}


class Produced:
    """A GET endpoint whose answer is made in one synchronous step: no `await` between look and answer."""

    __slots__ = ("_produce",)

    def __init__(self, produce: Callable[[], Answer]) -> None:
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._produce()(scope, receive, send)


class Heard:
    """`inner`, and who asks if it is another router."""

    __slots__ = ("_heard", "_inner")

    def __init__(self, inner: Produced, heard: Callable[[str], None]) -> None:
        self._inner = inner
        self._heard = heard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope["headers"]:
            if name == ROUTER_HEADER:
                self._heard(value.decode("latin-1"))
        await self._inner(scope, receive, send)


def health_routes(
    readiness: Callable[[], Readiness], health: Callable[[], Health], *, heard: Callable[[str], None]
) -> list[Route]:
    """`readiness` and `health` judge at the instant of the call; `heard` is told which router asks."""

    def ready() -> Answer:
        judged = readiness()
        status, headers = (200, None) if judged.ready else (503, RETRY_AFTER)
        return json_answer(status, ready_body(judged), headers=headers)

    def healthy() -> Answer:
        return json_answer(200, health_body(health()))

    return [
        Route("/ready", Heard(Produced(ready), heard), methods=["GET"]),
        Route("/health", Produced(healthy), methods=["GET"]),
    ]
