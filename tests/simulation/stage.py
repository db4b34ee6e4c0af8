"""A world without random faults, in which a test says what happens and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from narwhal.policy.election import Election
from tests.simulation.routers import SimRouter
from tests.simulation.world import Outcome, Plan, World

Script = Callable[["Stage"], Awaitable[None]]
SEED = 5


class Stage(World):
    """Three routers, T 5 s, a network without slow packets. Runs `script`, then until `duration_s`."""

    def __init__(self, script: Script, *, duration_s: float, election: type[Election]) -> None:
        super().__init__(Plan(SEED, "pauses", election=election))
        self._script = script
        self._duration_s = duration_s
        self.net.calm = True

    def _names(self) -> tuple[str, ...]:
        return ("a", "b", "c")

    async def live(self) -> None:
        self._watch()
        for name in self.hosts:
            self.spawn(name)
        await self._script(self)
        while self.loop.time() < self._duration_s:
            await asyncio.sleep(0.25)
            self.checkers.counters()
        await self._settle()
        self.judge_end()

    async def owner(self) -> SimRouter:
        """Waits until somebody admits."""
        await self.until(lambda: any(router.admits() for router in self.latest.values()))
        return next(router for router in self.latest.values() if router.admits())

    async def until(self, holds: Callable[[], bool]) -> None:
        while True:
            if holds():
                return
            await asyncio.sleep(0.001)


def play(script: Script, *, duration_s: float = 40.0, election: type[Election] = Election) -> Outcome:
    return Stage(script, duration_s=duration_s, election=election).run()
