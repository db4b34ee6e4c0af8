"""One simulated router: the production membership on two strands, with work and monitor passes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from narwhal.cluster.assembly import (
    MemberSettings,
    Membership,
    Owned,
    Stores,
    Surroundings,
    assemble,
)
from narwhal.cluster.failsafe import NoPeers
from narwhal.cluster.state import Identity
from narwhal.cluster.warden import Settlement, WardenStores
from narwhal.errors import ConfigError, NotOwner, StoreError
from narwhal.model.leadership import LeaseSight
from narwhal.model.lease import OwnerMeta
from narwhal.model.legacy import Legacy, ToldToken
from narwhal.model.request import Outcome, RequestRow
from narwhal.model.settings import LeaseTimings
from narwhal.policy.death import ProcessSight, Signalled
from narwhal.policy.election import Election
from narwhal.policy.fleet import Fleet
from narwhal.policy.intents import Effect
from narwhal.policy.totals import Totals
from narwhal.ports import Peers
from narwhal.serving.control import ControlCheck
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryCheckpoint, MemoryFeed, MemoryRunner, MemoryServer
from narwhal.store.quorum import Quorum
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import Argument, Needs
from tests.simulation.engines import CLUSTER, ENGINES, PREFILL, PROBE, FencedEngines
from tests.simulation.network import DATA, FEED, LEASE, Network, SimLink
from tests.simulation.operator import maintenance_of
from tests.support.settings import fleet_config
from tests.support.virtual_time import Strand, StrandClock

PASS_S = 1.0
FAILURE_LIMIT = 5
"""`controller.monitor_failure_limit`"""
OWN_CAUSE = "monitoring degraded: handoff OSError"
Trace = Callable[[str], None]
PeersOf = Callable[[Strand], Peers]
"""How a thread of this router asks others."""


@dataclass(frozen=True, slots=True)
class Host:
    """What outlives a router's process."""

    name: str
    rate: float
    offset_s: float
    timings: LeaseTimings
    checkpoint: MemoryCheckpoint
    prefer_standby: bool = False
    warden: bool = False
    lives: dict[int, SimRouter] = field(default_factory=dict)
    """Every process that ever ran here, by PID."""
    voters: tuple[str, ...] = ()
    """Of fail-safe mode; empty: it is off."""
    election: type[Election] = Election


@dataclass(frozen=True, slots=True)
class Sent:
    """One operation as it leaves a router."""

    router: SimRouter
    script: str
    keys: Sequence[str]
    args: Sequence[Argument]


class SimRunner(MemoryRunner):
    """Shows every operation before it is sent."""

    def __init__(self, router: SimRouter, link: SimLink) -> None:
        super().__init__(router.where, link)
        self._router = router

    async def run(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> list[bytes]:
        await self._show(script, keys, args)
        return await super().run(script, keys, args=args, timeout_s=timeout_s)

    async def run_confirmed(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument], needs: Needs, timeout_s: float
    ) -> list[bytes]:
        await self._show(script, keys, args)
        return await super().run_confirmed(script, keys, args=args, needs=needs, timeout_s=timeout_s)

    async def _show(self, script: str, keys: Sequence[str], args: Sequence[Argument]) -> None:
        if self._router.on_send(Sent(self._router, script, keys, args)):
            await asyncio.sleep(0)


class Scribe:
    """The Recorder port: every event goes to the trace."""

    def __init__(self, router: SimRouter) -> None:
        self._router = router
        self._name = router.run
        self._trace = router.trace

    def request(self, row: RequestRow, outcome: Outcome) -> None:
        """No request rows here."""

    def event(self, kind: str, fields: Mapping[str, Any], *, repeated: bool = False) -> None:
        if kind == "yield_by_claim":
            self._router.on_yield_by_claim(self._router, str(fields["to"]))
        told = " ".join(f"{key}={value}" for key, value in sorted(fields.items()))
        self._trace(f"{self._name} {kind} {told}")


class SimRouter:
    """One life of one router process. `counted` is the truth that its counters are judged by."""

    def __init__(
        self, host: Host, net: Network, *, life: int, trace: Trace, peers: PeersOf | None = None
    ) -> None:
        self.host = host
        self.run = f"{host.name}-{life}"
        self.net = net
        self.trace = trace
        self.main = Strand(f"{self.run}/main")
        self.keeper = Strand(f"{self.run}/keeper")
        self.clock = StrandClock(net.loop, host.rate, host.offset_s)
        self.rng = random.Random(f"{net.rng.random()}/{self.run}")
        self.fleet = Fleet(fleet_config(*ENGINES), {})
        self.totals = Totals(self.run)
        self.counted = 0
        self.counted_at: list[float] = []
        self.in_flight = 0
        """Requests whose prefill was dispatched here and that have not ended."""
        self.closing = False
        """No new clients come."""
        self.on_dispatch: Callable[[SimRouter, int], None] = lambda router, epoch: None
        """An engine has taken a prefill under that epoch."""
        self.engines = FencedEngines()
        """The world's, once it has said so."""
        self._turn = 0
        self.tokens: tuple[ToldToken, ...] = ()
        """What a warden was told: the last two, newest first."""
        self.warden = Strand(f"{self.run}/warden")
        self.settlement: Settlement | None = None
        self.on_send: Callable[[Sent], bool] = lambda sent: False
        """True: somebody acts on it first."""
        self.ended = ""
        self.on_yield_by_claim: Callable[[SimRouter, str], None] = lambda router, to: None
        self._peers = peers or (lambda strand: NoPeers())
        self.degraded_until = 0.0
        """Its monitoring is degraded until this virtual time."""
        self._failed_passes = 0
        host.lives[_pid(self.run)] = self
        self.scribe = Scribe(self)
        self.parts = self._assemble()
        self.maintenance = maintenance_of(self)
        self.parts.takeover.introduce = self.maintenance.abandon
        self.parts.court.degraded = lambda: self.degraded

    @property
    def strands(self) -> list[Strand]:
        return [self.main, self.keeper, self.warden]

    @property
    def alive(self) -> bool:
        return not self.main.dead and not self.ended

    @property
    def degraded(self) -> str:
        """Why its monitoring is degraded, "" while it is sound."""
        if self.degraded_until > self.net.loop.time():
            return "monitoring degraded: controller ValueError"
        return OWN_CAUSE if self._failed_passes >= FAILURE_LIMIT else ""

    def _look(self, pid: int) -> ProcessSight:
        """What this host's kernel says of a PID."""
        life = self.host.lives.get(pid)
        if life is None or life.main.dead:
            return ProcessSight(Signalled.NO_SUCH_PROCESS)
        return ProcessSight(Signalled.REACHED, "S", "1")

    def admits(self) -> bool:
        """By its own clock at this instant, whether or not its process runs just now."""
        return not self.main.dead and self.parts.gate.may_admit(self.clock.now())

    def where(self) -> MemoryServer:
        return self.net.reached_by(self.host.name).server

    # --- making ----------------------------------------------------------------------------------

    def _link(self, connection: str, *strands: Strand) -> SimLink:
        name = f"{self.host.name}/{connection}"
        return SimLink(self.net, name, strands=strands, rate=self.host.rate)

    def _assemble(self) -> Membership:
        main, keeper, quorum = self.main, self.keeper, Quorum()
        quorum.guarded = len(self.net.nodes) > 2
        data, lease = (
            SimRunner(self, self._link(DATA, main, keeper)),
            SimRunner(self, self._link(LEASE, keeper, main)),
        )
        stores = Stores(
            lease=ScriptLeaseStore(lease, CLUSTER, quorum=quorum),
            record=ScriptLeaseStore(data, CLUSTER, quorum=quorum),
            handoffs=ScriptHandoffStore(data, CLUSTER, quorum=quorum),
            feed=MemoryFeed(self.where, self._link(FEED, main, keeper)),
            registry=ScriptRegistry(data, CLUSTER),
            checkpoint=self.host.checkpoint,
        )
        name = self.host.name
        settings = MemberSettings(
            cluster=CLUSTER,
            meta=_meta(name, self.run),
            identity=Identity(name, self.run, "tiny", tuple(sorted(self.fleet.roles())), boot_id="boot"),
            timings=self.host.timings,
            prefer_standby=self.host.prefer_standby,
            resume=True,
            failsafe=self.host.voters,
        )
        surroundings = Surroundings(
            clock=self.clock,
            recorder=self.scribe,
            draw=lambda: f"{self.rng.getrandbits(128):032x}",
            jitter=self.rng.random,
            blocking=_at_once,
            tell=self._tell,
            election=self.host.election,
            tell_token=self._told_token,
            look=self._look,
            peers=self._peers(self.main),
            keeper_peers=self._peers(self.keeper),
        )
        return assemble(settings, stores, owned=Owned(self.fleet, self.totals), surroundings=surroundings)

    def _tell(self, told: Effect | LeaseSight) -> None:
        if not isinstance(told, LeaseSight):
            self.trace(f"{self.run} {_without_secrets(told)}")
        self.net.loop.call_soon_threadsafe(self.parts.member.take, told, context=self.main.context())

    def _told_token(self, token: str, floor: int) -> None:
        self.tokens = (ToldToken(token, floor), *self.tokens)[:2]

    # --- living ----------------------------------------------------------------------------------

    def start(self) -> None:
        self.trace(f"{self.run} starts")
        self.keeper.spawn(self.parts.keeper.run())
        for work in (self._member(), self._work(), self._passes()):
            self.main.spawn(work)

    async def _member(self) -> None:
        try:
            await self.parts.member.run()
        except ConfigError as error:
            self.ended = str(error)
            self.trace(f"{self.run} ends: {error}")
            self.parts.keeper.stop()

    async def _work(self) -> None:
        """Clients come: each one waits a little for a place, is dispatched, and takes its time."""
        control = ControlCheck(self.parts.gate, self.clock)
        while not self.closing:
            await self.clock.sleep(self.rng.uniform(0.1, 0.7))
            if self.parts.gate.may_admit(self.clock.now()):
                self._serve(control)

    def _serve(self, control: ControlCheck) -> None:
        queued = self.rng.random() < 0.2
        self.main.spawn(self._request(control, wait_s=self.rng.uniform(0.0, 1.5) if queued else 0.0))
        if self.rng.random() < 0.03:
            self._change_roles()

    async def _request(self, control: ControlCheck, *, wait_s: float) -> None:
        """A request that still waits at the end of an ownership is refused; one that was dispatched ends
        here, whatever happens to the lease, and is counted where a client counts it."""
        if wait_s:
            await self.clock.sleep(wait_s)
        try:
            control.demand()
        except NotOwner:
            self.totals.finished(Outcome.REFUSED)
            return
        self._turn += 1
        if self._refused(ENGINES[self._turn % len(ENGINES)].iid, control.gate.epoch, PREFILL):
            self.totals.finished(Outcome.REFUSED)
            return
        self.on_dispatch(self, control.gate.epoch)
        self.in_flight += 1
        await self.clock.sleep(
            self.rng.uniform(0.05, 0.3) if self.rng.random() < 0.8 else self.rng.uniform(1.0, 4.0)
        )
        self.in_flight -= 1
        self.counted += 1
        self.counted_at.append(self.net.loop.time())
        self.totals.finished(Outcome.SERVED)

    def _refused(self, iid: str, epoch: int, leg: bytes) -> bool:
        """An engine that knows a higher epoch ends this ownership."""
        known = self.engines.refuses(iid, epoch, leg)
        if known is not None:
            self.trace(f"{self.run} is refused by {iid}: {epoch} below {known}")
            self.parts.gate.overruled(iid, known)
        return known is not None

    def _change_roles(self) -> None:
        document = self.parts.publisher.document()
        if document is not None:
            roles = {iid: self.rng.choice(("prefill", "decode")) for iid in document.roles}
            self.fleet.restore(replace(document, roles=roles), self.clock.now())

    async def _passes(self) -> None:
        """What the monitor's `handoff` stage does, and its health checks, which teach the engines."""
        while True:
            await self.clock.sleep(PASS_S)
            for spec in ENGINES:
                epoch = self.parts.gate.probe_epoch(self.clock.now())
                if epoch is not None:
                    self._refused(spec.iid, epoch, PROBE)
            if self.parts.gate.may_admit(self.clock.now()):
                with contextlib.suppress(StoreError):
                    await self.parts.publisher.snapshot()
                try:
                    await self.parts.publisher.checkpoint()
                except OSError:
                    self._failed_passes += 1
                    continue
            self._failed_passes = 0

    def kill(self) -> None:
        self.trace(f"{self.run} is killed")
        self.main.dead = self.keeper.dead = True
        if self.host.warden:
            self._leave_to_the_warden()

    def _leave_to_the_warden(self) -> None:
        runner = SimRunner(self, self._link(DATA, self.warden))
        stores = WardenStores(
            ScriptLeaseStore(runner, CLUSTER),
            ScriptHandoffStore(runner, CLUSTER),
            ScriptRegistry(runner, CLUSTER),
        )
        legacy = Legacy(self.host.name, self.run, self.totals.own, self.tokens)
        self.settlement = Settlement(legacy, stores, clock=self.clock)
        until = self.clock.now() + self.host.timings.ttl_s
        self.warden.spawn(self.settlement.run(until=until, given_up=lambda: False))

    def pause(self, seconds: float, *, main_only: bool = False) -> None:
        until = self.net.loop.time() + seconds
        for strand in [self.main] if main_only else [self.main, self.keeper]:
            self.net.loop.pause(strand, until)

    def ask_yield(self, successor: str = "") -> None:
        self.main.spawn(self._yield(successor))

    async def _yield(self, successor: str) -> None:
        await self.parts.member.give_back("yield", successor=successor)


def _pid(run: str) -> int:
    return 1000 + int(run.rpartition("-")[2])


def _meta(name: str, run: str) -> OwnerMeta:
    """Every router has a host of its own, and every life a PID of its own."""
    return OwnerMeta(
        name,
        f"http://{name}",
        host=name,
        machine_id=f"machine-{name}",
        boot_id=f"boot-{name}",
        pidns="4026531836",
        pid=_pid(run),
        pid_start="1",
    )


async def _at_once(call: Callable[[], None]) -> None:
    call()
    await asyncio.sleep(0)


def _without_secrets(effect: Effect) -> str:
    return repr(effect)
