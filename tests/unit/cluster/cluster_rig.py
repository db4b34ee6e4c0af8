"""Routers' memberships over one in-memory server on virtual time, for unit tests of the cluster package."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from narwhal.cluster.assembly import MemberSettings, Membership, Owned, Stores, Surroundings, assemble
from narwhal.cluster.claims import engines_pass
from narwhal.cluster.state import Identity
from narwhal.errors import StoreUnreachable
from narwhal.model.engine import EngineSpec
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import LogPosition, StoredHandoff
from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion
from narwhal.model.lease import AppendReply, OwnerMeta, PublishReply
from narwhal.model.request import Counters, Outcome, RequestRow
from narwhal.model.settings import LeaseTimings
from narwhal.model.store_call import AppendRequest, FeedBatch, PublishRequest
from narwhal.peers.memory import MemoryPeers, Neighbourhood, PeerEnd
from narwhal.policy.death import blind
from narwhal.policy.fleet import Fleet
from narwhal.policy.totals import Totals
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryCheckpoint, MemoryFeed, MemoryRunner, MemoryServer
from narwhal.store.registry import ScriptRegistry
from tests.support.settings import fleet_config
from tests.support.virtual_time import Strand, StrandClock, VirtualLoop

R = TypeVar("R")
ENGINES = (EngineSpec("e0", "http://e0"), EngineSpec("e1", "http://e1"))


class StreakyFleet(Fleet):
    """A fleet with failure streaks to tell, which only a delta carries at once."""

    streaks: Mapping[str, Any] = {}

    def export(self, now: float) -> FleetState:
        return replace(super().export(now), streaks=self.streaks)


class DeadFeed(MemoryFeed):
    """A feed connection that never answers."""

    async def read(self, after: LogPosition, *, block_s: float) -> FeedBatch:
        raise StoreUnreachable("no answer")


class TroubledHandoffs(ScriptHandoffStore):
    """The store with writes that fail on order. `mute`: they happen, but no answer comes; `slow`: no
    answer about the totals; `deaf`: none to who reads the document. `loads` counts how often it was read."""

    __slots__ = ("deaf", "full", "loads", "mute", "slow")

    def __init__(self, runner: MemoryRunner, cluster: str) -> None:
        super().__init__(runner, cluster)
        self.deaf = self.full = self.mute = self.slow = False
        self.loads = 0

    async def load(self, *, timeout_s: float) -> StoredHandoff | None:
        self.loads += 1
        if self.deaf:
            raise StoreUnreachable("no answer")
        return await super().load(timeout_s=timeout_s)

    async def publish(self, request: PublishRequest, *, timeout_s: float) -> PublishReply:
        if self.full:
            raise StoreUnreachable("OOM command not allowed")
        return self._answer(await super().publish(request, timeout_s=timeout_s))

    async def append(self, request: AppendRequest, *, timeout_s: float) -> AppendReply:
        return self._answer(await super().append(request, timeout_s=timeout_s))

    async def flush_totals(self, runs: Mapping[str, Counters], *, timeout_s: float) -> Mapping[str, Counters]:
        if self.slow:
            raise StoreUnreachable("no answer")
        return await super().flush_totals(runs, timeout_s=timeout_s)

    def _answer(self, reply: R) -> R:
        if self.mute:
            raise StoreUnreachable("no answer")
        return reply


class TroubledRegistry(ScriptRegistry):
    """Claims that fail on order. `mute`: they are written, but no answer comes; `lost`: neither."""

    __slots__ = ("lost", "mute")

    def __init__(self, runner: MemoryRunner, cluster: str) -> None:
        super().__init__(runner, cluster)
        self.lost = self.mute = False

    async def put_claim(self, router_id: str, *, epoch: int, reason: str, timeout_s: float) -> bool:
        if self.lost:
            raise StoreUnreachable("no answer")
        put = await super().put_claim(router_id, epoch=epoch, reason=reason, timeout_s=timeout_s)
        if self.mute:
            raise StoreUnreachable("no answer")
        return put


@dataclass
class Book:
    """The Recorder port: keeps the events."""

    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def request(self, row: RequestRow, outcome: Outcome) -> None:
        """No requests here."""

    def event(self, kind: str, fields: Mapping[str, Any], *, repeated: bool = False) -> None:
        self.events.append((kind, fields))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@dataclass(frozen=True)
class Router:
    """One membership and everything it was made of."""

    parts: Membership
    fleet: StreakyFleet
    totals: Totals
    handoffs: TroubledHandoffs
    registry: TroubledRegistry
    checkpoint: MemoryCheckpoint
    book: Book
    main: Strand
    keeper: Strand

    def start(self) -> None:
        self.keeper.spawn(self.parts.keeper.run())
        self.main.spawn(self.parts.member.run())

    def kill(self) -> None:
        self.main.dead = self.keeper.dead = True

    def end(self, clock: StrandClock) -> PeerEnd:
        """The router as others reach it; a killed one gives no answer."""

        def ready(asker: str) -> PeerReady:
            if self.main.dead:
                return PeerReady(False, 0, "dead")
            self.parts.court.heard(asker)
            degraded = self.parts.court.degraded()
            return PeerReady(not degraded and self.owns, self.parts.gate.epoch, degraded or "standby")

        async def pledge(question: PledgeQuestion) -> PledgeAnswer:
            if self.main.dead:
                await asyncio.Event().wait()
            return await self.parts.keeper.pledge(question)

        return PeerEnd(ready, pledge, key="key")

    @property
    def owns(self) -> bool:
        return self.parts.gate.may_admit(self.parts.gate._clock.now())


class Scene:
    """One server and its routers. Use it inside `play`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = StrandClock(loop)
        self.server = MemoryServer(lambda: 1_700_000_000.0 + loop.time())
        self.routers: list[Router] = []
        self.around = Neighbourhood()
        self._numbers = itertools.count(1)

    def router(self, name: str, **changes: Any) -> Router:
        """A router that is not started yet. `changes` are of MemberSettings, and `engines`, `model`,
        `checkpoint`, `feed`, `look`."""
        run = f"{name}-{next(self._numbers)}"
        engines = changes.pop("engines", ENGINES)
        model = changes.pop("model", "tiny")
        checkpoint = changes.pop("checkpoint", None) or MemoryCheckpoint()
        feed = changes.pop("feed", None) or MemoryFeed(self.server)
        fleet, totals = StreakyFleet(fleet_config(*engines), {}), Totals(run)
        runner = MemoryRunner(self.server, changes.pop("link", None))
        peers = MemoryPeers(name, self.around, key=changes.pop("key", "key"))
        handoffs, registry = TroubledHandoffs(runner, "c"), TroubledRegistry(runner, "c")
        main, keeper, book = Strand(f"{run}/main"), Strand(f"{run}/keeper"), Book()
        stores = Stores(
            lease=ScriptLeaseStore(runner, "c"),
            record=ScriptLeaseStore(runner, "c"),
            handoffs=handoffs,
            feed=feed,
            registry=registry,
            checkpoint=checkpoint,
        )
        look = changes.pop("look", blind)
        settings = MemberSettings(
            cluster="c",
            meta=OwnerMeta(name, f"http://{name}", version="1"),
            identity=Identity(name, run, model, tuple(spec.iid for spec in engines), boot_id="boot"),
            timings=LeaseTimings(),
        )
        surroundings = Surroundings(
            clock=self.clock,
            recorder=book,
            draw=lambda: f"{run}-{next(self._numbers):08}",
            jitter=lambda: 0.0,
            blocking=at_once,
            tell=lambda told: self.loop.call_soon(parts.member.take, told, context=main.context()),
            peers=peers,
            keeper_peers=peers,
            look=look,
            probe=changes.pop("probe", engines_pass),
        )
        parts = assemble(
            replace(settings, **changes), stores, owned=Owned(fleet, totals), surroundings=surroundings
        )
        router = Router(parts, fleet, totals, handoffs, registry, checkpoint, book, main=main, keeper=keeper)
        self.routers.append(router)
        self.around.ends[f"http://{name}"] = router.end(self.clock)
        return router

    async def until(self, holds: Callable[[], bool], *, limit_s: float = 60.0) -> None:
        """Waits for a condition; fails after `limit_s` virtual seconds."""
        end = self.loop.time() + limit_s
        while True:
            if holds():
                return
            assert self.loop.time() < end, "it never came to pass"
            await self.clock.sleep(0.01)

    async def owner(self, name: str = "r0", **changes: Any) -> Router:
        """A started router that has become the owner."""
        router = self.router(name, **changes)
        router.start()
        await self.until(lambda: router.owns)
        return router

    async def stored(self) -> StoredHandoff:
        handoff = await ScriptHandoffStore(MemoryRunner(self.server), "c").load(timeout_s=1.0)
        assert handoff is not None
        return handoff


async def at_once(call: Callable[[], None]) -> None:
    call()


def play(script: Callable[[Scene], Awaitable[None]]) -> None:
    """Runs a script on virtual time and buries its routers."""
    loop = VirtualLoop()
    scene = Scene(loop)

    async def whole() -> None:
        await script(scene)

    work: Coroutine[Any, Any, None] = whole()
    try:
        loop.run(work)
    finally:
        loop.bury([strand for router in scene.routers for strand in (router.main, router.keeper)])
        loop.close()
