"""One simulated cluster on one virtual clock: hosts, routers, network, store. Runs a plan and judges it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from dataclasses import dataclass, replace

from narwhal.model.settings import LeaseTimings
from narwhal.policy.election import Election
from narwhal.store.memory import MemoryCheckpoint
from tests.simulation.checkers import Checkers, Violation
from tests.simulation.classes import BUSY_S, CLASSES, FaultClass
from tests.simulation.engines import FencedEngines
from tests.simulation.faults import Mischief
from tests.simulation.network import Network
from tests.simulation.operator import Operator
from tests.simulation.peers import SimPeers
from tests.simulation.routers import Host, SimRouter
from tests.support.virtual_time import Strand, VirtualLoop

AFTERMATH_S = 4.0
"""A run goes on at least so long after the last fault: who was harmed by it may still act on it."""
HEAL_S = 26.0
"""After the last fault an owner must be there by then: a crashed router's entry lives 15 s, then T passes."""
SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `margin_s` is M of every router."""

    seed: int
    kind: str = "mixed"
    election: type[Election] = Election
    margin_s: float = LeaseTimings().safety_margin_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """`owned`: share of the time with an owner; `healed_s`: from the last fault to an owner that stays."""

    seed: int
    kind: str
    digest: str
    openings: int
    owned: float
    healed_s: float
    counted: int
    steps: int
    trace: tuple[str, ...]
    error: str = ""


class World:
    """Two or three hosts, one store, one clock."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kind: FaultClass = CLASSES[plan.kind]
        self.loop = VirtualLoop()
        self.rng = random.Random(f"{plan.kind}/{plan.seed}")
        self.net = Network(self.loop, self.rng, replicas=self._replicas())
        self.lives: list[SimRouter] = []
        self.lines: list[str] = []
        self.samples: list[bool] = []
        self.healed_s = 0.0
        self.unexpected: list[str] = []
        self.latest: dict[str, SimRouter] = {}
        self.engines = FencedEngines()
        self.operator = Operator(f"operator/{plan.kind}/{plan.seed}")
        self.checkers = Checkers(
            lambda: self.lives,
            self.latest.values,
            data=lambda: self.net.store.server.data,
            operator=self.operator,
        )
        self.checkers.keeps_promises = self.kind.keeps_promises
        self.names = self._names()
        self.failsafe = self.rng.choice(self.kind.failsafe)
        self.hosts = {name: self._host(name) for name in self.names}

    def _replicas(self) -> int:
        return self.rng.choice(self.kind.replicas)

    def _names(self) -> tuple[str, ...]:
        return ("a", "b") if self.rng.random() < 0.65 else ("a", "b", "c")

    def _host(self, name: str) -> Host:
        low, high = self.kind.rates
        rate = self.rng.choice((low, high)) if self.kind.extreme_rates else self.rng.uniform(low, high)
        ttl_s = self.rng.choice(self.kind.ttls)
        return Host(
            name=name,
            rate=rate,
            offset_s=self.rng.uniform(0.0, 1e6),
            timings=replace(LeaseTimings(), ttl_s=ttl_s, safety_margin_s=self.plan.margin_s),
            checkpoint=MemoryCheckpoint(),
            prefer_standby=self.rng.random() < 0.2 and name != self.names[0],
            voters=self.names if self.failsafe else (),
            warden=self.rng.choice(self.kind.wardens),
            election=self.plan.election,
        )

    def trace(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():.6f} {line}")

    def spawn(self, name: str) -> SimRouter:
        def peers(strand: Strand) -> SimPeers:
            return SimPeers(name, strand, net=self.net, find=self._at_url)

        life = len(self.lives)
        router = SimRouter(self.hosts[name], self.net, life=life, trace=self.trace, peers=peers)
        router.on_yield_by_claim = lambda who, to: self.checkers.released_by_claim(
            who, to, now=self.loop.time()
        )
        router.engines = self.engines
        router.on_dispatch, router.on_send = self.checkers.dispatched, self.checkers.sent
        self.lives.append(router)
        self.latest[name] = router
        router.start()
        return router

    def _at_url(self, url: str) -> SimRouter | None:
        return self.latest.get(url.removeprefix("http://"))

    def current(self) -> dict[str, SimRouter]:
        """The latest life of each host."""
        return dict(self.latest)

    # --- one run -----------------------------------------------------------------------------------

    async def live(self) -> None:
        self._watch()
        for name in self.hosts:
            self.net.at(self.rng.uniform(0.0, 0.5), self.spawn, name)
        orders = asyncio.ensure_future(self._orders())
        await self._suffer()
        self.net.calm = True
        await self._heal()
        orders.cancel()
        await self._settle()
        self.judge_end()

    async def _orders(self) -> None:
        """In every other run: each order is a snapshot more."""
        if self.plan.seed % 2 == 0:
            await self.operator.work(self.latest.values)

    def _watch(self) -> None:
        self.loop.on_step = self.checkers.after_event
        self.net.on_applied = self.checkers.after_write

    async def _suffer(self) -> None:
        begin = 6.0
        if self.rng.random() < 0.7:
            begin = 1.5
            self.inherit(max(host.timings.ttl_s for host in self.hosts.values()))
        calm_at = begin + BUSY_S
        mischief = Mischief(self, calm_at=calm_at)
        next_fault = begin + self.rng.uniform(0.0, 3.0)
        while self.loop.time() < calm_at:
            await self._sample()
            if next_fault <= self.loop.time():
                next_fault = self.loop.time() + self.rng.uniform(1.0, 6.0)
                mischief.strike(self._next_fault())

    def _next_fault(self) -> str:
        helped = self.kind.catalysts and self.rng.random() < 0.3
        return self.rng.choice(self.kind.catalysts if helped else self.kind.faults)

    def inherit(self, ttl_s: float) -> None:
        """The store knows of an owner that gave back: the first one opens at once, not after T."""
        server, ttl_ms = self.net.store.server, round(1000 * ttl_s)
        keys = ("",) * 4
        server.apply("lease_claim", keys, args=("earlier-marker", 0, ttl_ms))
        acquire = ("earlier", "earlier-marker:0", server.inc, 0, ttl_ms, 0, "owner", "x", "url", "http://x")
        server.apply("lease_acquire", keys, args=acquire)
        server.apply("lease_release", keys, args=("earlier", "", "shutdown", ""))

    async def _heal(self) -> None:
        """Until an owner has been there for a second, also long enough to see the late harm of a fault."""
        began, since = self.loop.time(), 0
        while self.loop.time() < began + AFTERMATH_S or since * 0.5 < SETTLED_S:
            if self.loop.time() > began + HEAL_S:
                raise Violation(f"I10: nobody owns {HEAL_S:g} s after the last fault")
            await self._sample()
            since = since + 1 if self.samples[-1] else 0
        self.healed_s = self.loop.time() - began

    async def _sample(self) -> None:
        await asyncio.sleep(0.5)
        self.checkers.counters()
        self._demand_nothing_unexpected()
        self.samples.append(any(router.admits() for router in self.latest.values()))

    async def _settle(self) -> None:
        """Clients stop; requests end, and the last counts reach the store."""
        for router in self.lives:
            router.closing = True
        for _ in range(20):
            await asyncio.sleep(0.5)
            busy = any(router.in_flight or self._unflushed(router) for router in self.latest.values())
            if not busy and not self.checkers.unknown_to_owner():
                return

    def _unflushed(self, router: SimRouter) -> int:
        """Counts that the store misses though nothing keeps them away any more."""
        settled = router.settlement is not None and not router.settlement.left
        if not (router.alive or (settled and not self.checkers.losses)):
            return 0
        return router.counted - self.checkers.stored().get(router.run, 0)

    def judge_end(self) -> None:
        """What must hold when everything has healed."""
        if not any(router.admits() for router in self.latest.values()):
            raise Violation("I10: nobody owns after the quiet time")
        epoch = max(router.parts.gate.epoch for router in self.latest.values() if router.admits())
        if epoch < self.engines.highest:
            raise Violation(f"I2: the owner's epoch {epoch} is below {self.engines.highest} of an engine")
        for router in self.latest.values():
            if router.alive and router.in_flight:
                raise Violation(f"I8: {router.in_flight} requests of {router.run} never ended")
        for router in self.lives:
            if missing := self._unflushed(router):
                raise Violation(f"I4: the store misses {missing} of {router.counted} of {router.run}")
        self.checkers.at_end()
        self.checkers.after_event()
        self._demand_nothing_unexpected()

    def _demand_nothing_unexpected(self) -> None:
        if self.unexpected:
            raise Violation(f"unexpected: {self.unexpected[0]}")

    def run(self) -> Outcome:
        error = ""
        quiet = [logging.getLogger(name) for name in ("asyncio", "narwhal.cluster", "narwhal.warden")]
        for logger in quiet:
            logger.disabled = True
        self.loop.set_exception_handler(self._note)
        try:
            self.loop.run(self.live())
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        finally:
            self._bury()
            for logger in quiet:
                logger.disabled = False
        return Outcome(
            seed=self.plan.seed,
            kind=self.plan.kind,
            digest=hashlib.sha256("\n".join(self.lines).encode()).hexdigest(),
            openings=self.checkers.openings,
            owned=sum(self.samples) / max(1, len(self.samples)),
            healed_s=self.healed_s,
            counted=sum(router.counted for router in self.lives),
            steps=self.loop.steps,
            trace=tuple(self.lines),
            error=error,
        )

    def _bury(self) -> None:
        strands = [strand for router in self.lives for strand in router.strands]
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.bury(strands)
        self.loop.close()

    def _note(self, loop: object, context: dict[str, object]) -> None:
        self.unexpected.append(f"{context.get('message')}: {context.get('exception')!r}")


def simulate(plan: Plan) -> Outcome:
    return World(plan).run()
