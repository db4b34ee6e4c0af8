"""A world without random faults, in which a schedule says what happens and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from tests.simulation.routers import Host, Sent, SimRouter
from tests.simulation.world import Outcome, Plan, World
from tests.support.broken_rules import Break

Script = Callable[["Stage"], Awaitable[None]]
SEED = 5
CALM = "pauses"
HEAD_START_S = 0.5
LONG_S = 300.0
"""A schedule that waits this long, on the simulated clock, waits for what does not come."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Three routers, T 5 s, a network without slow packets; `a` starts first and owns first. `ttls` and
    `rates` are by router. The schedule runs, then time goes on until `duration_s`."""

    script: Script
    duration_s: float = 40.0
    ttls: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    replicas: int = 0
    failsafe: bool = False


class Stage(World):
    """Plays one scene."""

    def __init__(self, scene: Scene, broken: Break) -> None:
        self.scene = scene
        super().__init__(Plan(SEED, CALM, election=broken.election, margin_s=broken.margin_s))
        self.net.calm = True
        self._catching: list[tuple[Callable[[Sent], bool], asyncio.Future[Sent]]] = []

    def _names(self) -> tuple[str, ...]:
        return ("a", "b", "c")

    def _replicas(self) -> int:
        return self.scene.replicas

    def _host(self, name: str) -> Host:
        host, scene = super()._host(name), self.scene
        timings = replace(host.timings, ttl_s=scene.ttls.get(name, host.timings.ttl_s))
        voters = self.names if scene.failsafe else ()
        return replace(
            host, voters=voters, timings=timings, rate=scene.rates.get(name, host.rate), prefer_standby=False
        )

    def spawn(self, name: str) -> SimRouter:
        router = super().spawn(name)
        router.on_send = self._sent
        return router

    async def live(self) -> None:
        self._watch()
        self.inherit(min(host.timings.ttl_s for host in self.hosts.values()))
        self.net.at(0.0, self.spawn, "a")
        for name in ("b", "c"):
            self.net.at(HEAD_START_S, self.spawn, name)
        await asyncio.sleep(HEAD_START_S)
        await self.scene.script(self)
        while self.loop.time() < self.scene.duration_s:
            await asyncio.sleep(0.25)
            self.checkers.counters()
        await self._settle()
        self.judge_end()

    # --- what schedules say ------------------------------------------------------------------------

    async def owner(self) -> SimRouter:
        """Waits until somebody admits."""
        await self.until(lambda: any(router.admits() for router in self.latest.values()))
        return next(router for router in self.latest.values() if router.admits())

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = self.loop.time() + LONG_S
        while not holds():
            assert self.loop.time() < deadline, f"did not come about within {LONG_S:g} simulated seconds"
            await asyncio.sleep(0.001)

    async def caught(self, wanted: Callable[[Sent], bool]) -> Sent:
        """Waits for an operation that a router sends. What the caller does before its next wait happens
        before it leaves."""
        future: asyncio.Future[Sent] = self.loop.create_future()
        self._catching.append((wanted, future))
        async with asyncio.timeout(LONG_S):
            return await future

    def arrives(self, sent: Sent) -> None:
        """A late copy of an operation reaches the store; nobody reads its answer."""
        self.net.store.server.apply(sent.script, sent.keys, args=sent.args)
        self.net.on_applied(sent.router.host.name)

    def _sent(self, sent: Sent) -> bool:
        self.checkers.sent(sent)
        caught = [entry for entry in self._catching if entry[0](sent)]
        for entry in caught:
            self._catching.remove(entry)
            entry[1].set_result(sent)
        return bool(caught)


def play(scene: Scene | Script, broken: Break | None = None) -> Outcome:
    """Runs the scene; with `broken`, while that rule is broken."""
    whole = scene if isinstance(scene, Scene) else Scene(scene)
    chosen = broken or Break()
    with chosen.applied():
        return Stage(whole, chosen).run()
