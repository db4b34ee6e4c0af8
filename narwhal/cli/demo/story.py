"""The run: start everything, kill the owner with -9, let a router come back, switch cleanly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from narwhal.cli.demo.machines import Router, Site, start_engines, start_redis, write_fleet
from narwhal.cli.demo.traffic import Tally, Traffic
from narwhal.cli.demo.watch import Standing, Watch
from narwhal.cli.witness import overlaps

INTERVAL_S: Final = 0.02
BETWEEN: Final = 25
"""Completed requests before and after each change of owner."""


@dataclass(frozen=True, slots=True)
class Act:
    """One change of owner. `at`: monotonic seconds of the signal; `takeover_s`: to the successor's first
    200 on /ready; tallies and standings before it and after it, both while clients were at work."""

    name: str
    at: float
    takeover_s: float
    before: tuple[Standing, Tally]
    after: tuple[Standing, Tally]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that the report needs. `last`: the owner's word after all clients had ended."""

    acts: tuple[Act, ...]
    tally: Tally
    last: Standing
    overlaps: int


@dataclass(slots=True)
class Story:
    """`say` takes one line per step for people."""

    site: Site
    server: str
    say: Callable[[str], None]
    redis_port: int = 0
    engines: tuple[str, ...] = ()
    routers: tuple[Router, ...] = ()
    fleet: Path = Path()

    async def set_up(self) -> None:
        """Redis, engines and both routers. Raises StartFailed."""
        self.redis_port = await start_redis(self.site, self.server)
        self.say(f"Redis on port {self.redis_port} ({self.server})")
        self.engines = tuple(await start_engines(self.site, interval_s=INTERVAL_S))
        self.say(f"four simulated engines: {' '.join(self.engines)}")
        self.fleet = self.site.folder / "fleet.json"
        write_fleet(self.fleet, self.engines)
        self.routers = tuple(
            Router(self.site, name, fleet=self.fleet, redis_port=self.redis_port) for name in ("a", "b")
        )
        await asyncio.gather(*(router.start() for router in self.routers))
        self.say(f"two routers: {' '.join(router.url for router in self.routers)}")

    async def run(self) -> Outcome:
        """Raises TimeoutError when something did not come about in time."""
        async with Watch(self.routers) as watch:
            self.say("an empty store: the routers watch it for 5 s before one may own the fleet")
            owner, _ = await watch.ready(self.routers, 0.0, timeout_s=15)
            self.say(f"router {owner.name} owns the fleet; 8 openai clients begin to stream chats")
            async with Traffic([router.url for router in self.routers]) as traffic:
                await traffic.completions(BETWEEN)
                killed = await self._change(owner, "kill -9", watch=watch, traffic=traffic)
                await owner.start()
                self.say(f"router {owner.name} is back, as standby")
                owner = self._other(owner)
                await asyncio.sleep(1.0)
                switched = await self._change(owner, "clean switch", watch=watch, traffic=traffic)
                await traffic.stop()
                tally = traffic.tally
            last = await self._settled(self._other(owner))
            return Outcome((killed, switched), tally, last, len(overlaps(watch.yeses)))

    async def _change(self, owner: Router, name: str, *, watch: Watch, traffic: Traffic) -> Act:
        before = (await Standing.of(owner), traffic.tally.copy())
        at = time.monotonic()
        if name == "kill -9":
            owner.kill()
        else:
            owner.terminate()
        self.say(f"{name}: router {owner.name} ends")
        successor, moment = await watch.ready([self._other(owner)], at, timeout_s=20)
        self.say(f"router {successor.name} is ready after {moment - at:.2f} s")
        await traffic.completions(BETWEEN)
        after = (await Standing.of(successor), traffic.tally.copy())
        return Act(name, at, moment - at, before, after)

    async def _settled(self, owner: Router) -> Standing:
        """The owner's counters once nothing is open any more."""
        standing = await Standing.of(owner)
        for _ in range(50):
            await asyncio.sleep(0.1)
            newer = await Standing.of(owner)
            if newer == standing:
                break
            standing = newer
        return standing

    def _other(self, router: Router) -> Router:
        return next(one for one in self.routers if one is not router)
