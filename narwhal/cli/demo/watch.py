"""The routers as an outsider sees them: who says ready, when, and whether two ever said so at once."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from narwhal.cli.demo.machines import Router

EVERY_S: Final = 0.02


@dataclass(slots=True)
class Sightings:
    """Answers of one router's /ready: `ready` and `away` are monotonic seconds (asked, answered)."""

    ready: list[tuple[float, float]] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)

    def certain(self) -> list[tuple[float, float]]:
        """Spans in which it surely said ready: from one 200's answer to the next one's question, with no
        other answer between."""
        marks = sorted(
            [(asked, done, True) for asked, done in self.ready] + [(a, d, False) for a, d in self.away]
        )
        return [
            (one[1], two[0])
            for one, two in itertools.pairwise(marks)
            if one[2] and two[2] and two[0] > one[1] and two[0] - one[1] < 10 * EVERY_S
        ]

    def first_ready_after(self, moment: float) -> float | None:
        return min((done for asked, done in self.ready if asked >= moment), default=None)


class Watch:
    """Asks each router for /ready every 20 ms until closed."""

    def __init__(self, routers: Sequence[Router]) -> None:
        self.seen = {router.name: Sightings() for router in routers}
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
        seen = self.seen[router.name]
        async with httpx.AsyncClient(trust_env=False, timeout=1.0) as client:
            while self._open:
                asked = time.monotonic()
                try:
                    status = (await client.get(f"{router.url}/ready")).status_code
                except httpx.HTTPError:
                    status = 0
                (seen.ready if status == 200 else seen.away).append((asked, time.monotonic()))
                await asyncio.sleep(EVERY_S)

    async def ready(
        self, routers: Sequence[Router], after: float, *, timeout_s: float
    ) -> tuple[Router, float]:
        """The first of these to say ready in answer to a question asked after that moment, and when.

        Raises TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                for router in routers:
                    moment = self.seen[router.name].first_ready_after(after)
                    if moment is not None:
                        return router, moment
                await asyncio.sleep(EVERY_S)

    def overlaps(self) -> int:
        """How often two routers surely said ready at the same instant."""
        spans = [sightings.certain() for sightings in self.seen.values()]
        count = 0
        for n, mine in enumerate(spans):
            for others in spans[n + 1 :]:
                count += sum(1 for a in mine for b in others if a[0] < b[1] and b[0] < a[1])
        return count


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
