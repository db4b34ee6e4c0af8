"""The routers as an outsider sees them: who says ready, when, and whether two ever said so at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from narwhal.cli.demo.machines import Router
from narwhal.cli.witness import Yes

EVERY_S: Final = 0.02


class Watch:
    """Asks each router for /ready every 20 ms until closed."""

    def __init__(self, routers: Sequence[Router]) -> None:
        self.yeses: list[Yes] = []
        self._routers = routers
        self._tasks: list[asyncio.Task[None]] = []
        self._open = True

    async def __aenter__(self) -> Watch:
        self._tasks = [asyncio.create_task(self._probe(router)) for router in self._routers]
        return self

    async def __aexit__(self, *exc: object) -> None:
        # A cancellation may be lost inside an HTTP client; the flag ends the probe after its question.
        self._open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _probe(self, router: Router) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=1.0) as client:
            while self._open:
                asked = time.monotonic()
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get(f"{router.url}/ready")
                    if answer.status_code == 200:
                        self.yeses.append(Yes(router.url, answer.json()["epoch"], asked, time.monotonic()))
                await asyncio.sleep(EVERY_S)

    async def ready(
        self, routers: Sequence[Router], after: float, *, timeout_s: float
    ) -> tuple[Router, float]:
        """The first of these to say ready in answer to a question asked after that moment, and when.

        Raises TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            by_url = {router.url: router for router in routers}
            while True:
                answers = [yes for yes in self.yeses if yes.url in by_url and yes.asked >= after]
                if answers:
                    first = min(answers, key=lambda yes: yes.told)
                    return by_url[first.url], first.told
                await asyncio.sleep(EVERY_S)


async def document(router: Router, path: str) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        answer = await client.get(f"{router.url}{path}")
        found: dict[str, Any] = answer.json()
        return found


@dataclass(frozen=True, slots=True)
class Standing:
    """What the owner says of itself at one moment."""

    owner: str
    epoch: int
    counters: dict[str, int]

    @classmethod
    async def of(cls, router: Router) -> Standing:
        state = await document(router, "/narwhal/state")
        names = (
            "offered",
            "served",
            "failed",
            "cancelled",
            "rejected",
            "expired",
            "refused",
            "invalid_requests",
        )
        return cls(router.name, int(state["ha"]["epoch"]), {name: int(state[name]) for name in names})
