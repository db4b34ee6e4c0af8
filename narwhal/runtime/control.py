"""Control of the fleet as one router runs it: alone, or as a member of a cluster on Redis."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from narwhal import __version__
from narwhal.clock import Clock
from narwhal.cluster.assembly import MemberSettings, Membership, Owned, Stores, Surroundings, assemble
from narwhal.cluster.claims import Probing
from narwhal.cluster.local import LocalGate, LocalPublisher, LocalView
from narwhal.cluster.state import Identity, OwnState
from narwhal.errors import StoreUnreachable
from narwhal.model.control import OwnerRef
from narwhal.model.handover import PledgeAnswer, PledgeQuestion, YieldAnswer, YieldOutcome
from narwhal.model.leadership import LeaseSight
from narwhal.model.settings import ServeOptions, StoreAddress
from narwhal.model.state_view import HandoffView
from narwhal.peers.http import HttpPeers
from narwhal.policy.handoff_codec import to_fields
from narwhal.policy.intents import Effect
from narwhal.ports import Checkpoint, ControlGate, ControlView, LeaseStore, Recorder, StatePublisher
from narwhal.runtime.host import look_at, owner_meta
from narwhal.runtime.keeper_thread import KeeperThread
from narwhal.store.advice import inspect_server
from narwhal.store.connection import Login
from narwhal.store.feed import RedisFeed
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.quorum import Quorum
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner
from narwhal.store.sentinel import connection_to

log = logging.getLogger("narwhal.control")
R = TypeVar("R")

INSPECT_S = 0.8
INSPECT_PAUSE_S = 1.0


async def in_thread(work: Callable[[], R]) -> R:
    """File work off the loop."""
    return await asyncio.to_thread(work)


class Control(Protocol):
    """What the router needs of its control over the fleet, with and without a store."""

    @property
    def gate(self) -> ControlGate: ...

    @property
    def view(self) -> ControlView: ...

    @property
    def publisher(self) -> StatePublisher: ...

    def leg_stamp(self) -> str | None:
        """The value of `x-narwhal-epoch` on legs; None without a cluster."""

    def probe_stamp(self) -> str | None:
        """The same on probes; None also while another router owns."""

    def when_restoring(self, introduce: Callable[[], None]) -> None:
        """Calls `introduce` first thing in each takeover: engines are to learn the new epoch."""

    def when_open(self, probe: Callable[[], None]) -> None:
        """Calls `probe` when a takeover is done and its suspects may be looked at."""

    def when_ended(self, abandon: Callable[[], None]) -> None:
        """Calls `abandon` when an ownership is over."""

    def handoff(self) -> HandoffView | None: ...

    def heard(self, router_id: str) -> None:
        """Another router polled our /ready."""

    async def yield_lease(self, to: str | None) -> YieldAnswer:
        """Hands the fleet to the standby `to`, None: to any."""

    async def pledge(self, question: PledgeQuestion) -> PledgeAnswer:
        """Promises another router not to acquire for a while, or says why not."""

    async def run(self) -> None:
        """Works until cancelled; raises what must end the process."""

    async def shut_down(self) -> None:
        """Ends admission and gives the fleet away; streams go on."""

    async def finish(self) -> None:
        """The last state, when all streams have ended."""

    async def aclose(self) -> None: ...


async def first_failure(*works: Coroutine[Any, Any, None]) -> None:
    """Runs all at once and raises what the first one to fail raised, the rest cancelled.

    Returns when every one has ended by itself.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _until(ended: concurrent.futures.Future[None]) -> None:
    await asyncio.wrap_future(ended)


@dataclass(frozen=True, slots=True)
class ControlParts:
    """What both kinds are made of."""

    options: ServeOptions
    identity: Identity
    owned: Owned
    checkpoint: Checkpoint
    recorder: Recorder
    clock: Clock
    config_digest: str
    contract_digest: str
    section_digests: Mapping[str, str]
    tell_token: Callable[[str, int], None]
    degraded: Callable[[], str]
    failure_limit: int
    probe: Probing


class Stamped:
    """The value of `x-narwhal-epoch`. Made once an epoch, not once a request: it is on the request path."""

    __slots__ = ("_cluster", "_epoch", "_text")

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._epoch = -1
        self._text = ""

    def text(self, epoch: int | None) -> str | None:
        if epoch is None:
            return None
        if epoch != self._epoch:
            self._epoch, self._text = epoch, f"{self._cluster}/{epoch}"
        return self._text


class LocalControl:
    """Without `--redis-url`: this router alone, epoch 0, the checkpoint file its only memory."""

    def __init__(self, parts: ControlParts) -> None:
        options, clock = parts.options, parts.clock
        self._state = OwnState(parts.owned.fleet, parts.owned.totals, identity=parts.identity, clock=clock)
        self.gate = LocalGate()
        me = OwnerRef(options.router_id, options.advertise_url, control_url=options.control_url)
        self.view = LocalView(self.gate, me=me, version=__version__)
        self.publisher = LocalPublisher(parts.checkpoint, self._state, clock=clock, blocking=in_thread)
        for note in self.publisher.open(resume=options.resume):
            log.warning("%s", note)

    def leg_stamp(self) -> str | None:
        return None

    def probe_stamp(self) -> str | None:
        return None

    def when_restoring(self, introduce: Callable[[], None]) -> None:
        """There is no takeover here and no epoch."""

    def when_open(self, probe: Callable[[], None]) -> None:
        """What a checkpoint brought is probed in the first pass, which is at once."""

    def when_ended(self, abandon: Callable[[], None]) -> None:
        """It ends with the process."""

    def handoff(self) -> HandoffView | None:
        return HandoffView(to_fields(self._state.compose(epoch=0, holder="")), mirrored=False)

    def heard(self, router_id: str) -> None:
        """Nobody stands by."""

    async def yield_lease(self, to: str | None) -> YieldAnswer:
        error = f"no router {to} is known" if to is not None else "no standby is ready to take over"
        return YieldAnswer(YieldOutcome.REFUSED, f"{error}: this router runs without a shared store")

    async def pledge(self, question: PledgeQuestion) -> PledgeAnswer:
        return PledgeAnswer(False, "this router is in no cluster", question.nonce)

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def shut_down(self) -> None:
        self.gate.shutting_down = True

    async def finish(self) -> None:
        try:
            await self.publisher.checkpoint()
        except OSError as error:
            log.error("the last checkpoint could not be written: %s", error)

    async def aclose(self) -> None:
        """Nothing is held."""


class ClusterControl:
    """With `--redis-url`: keeper on its thread, the rest of the membership on the main loop."""

    def __init__(self, parts: ControlParts, address: StoreAddress) -> None:
        options = parts.options
        login = Login(f"narwhal-{options.router_id}", options.store_password)
        self._stamped = Stamped(options.cluster)
        self._clock = parts.clock
        self._quorum = Quorum(options.redis_min_replicas)
        self._data = connection_to(address, login, quorum=self._quorum)
        self._loop = asyncio.get_running_loop()
        stores = self._make_stores(address, login, parts=parts)
        self._peers = HttpPeers(options.router_id, key=options.control_key)
        keeper_peers = HttpPeers(options.router_id, key=options.control_key)
        surroundings = Surroundings(
            clock=parts.clock,
            recorder=parts.recorder,
            draw=lambda: secrets.token_hex(16),
            jitter=random.random,
            blocking=in_thread,
            tell=self._tell,
            tell_token=parts.tell_token,
            peers=self._peers,
            keeper_peers=keeper_peers,
            look=look_at,
            probe=parts.probe,
        )
        self._membership = assemble(
            _member_settings(parts), stores, owned=parts.owned, surroundings=surroundings
        )
        self._membership.court.degraded = parts.degraded
        self._stores = stores
        self.gate = self._membership.gate
        self.view = self._membership.view
        self.view.mode = "sentinel" if address.service else "standalone"
        self.publisher = self._membership.publisher
        self._keeper = KeeperThread(self._membership.keeper.run, close=_closing(stores.lease, keeper_peers))

    def _make_stores(self, address: StoreAddress, login: Login, *, parts: ControlParts) -> Stores:
        """Three connections, never shared between lease, data and feed; one count of replicas for all."""
        cluster, quorum, data = parts.options.cluster, self._quorum, RedisRunner(self._data)
        keeper = RedisRunner(connection_to(address, login, quorum=quorum))
        lease: LeaseStore = ScriptLeaseStore(keeper, cluster, quorum=quorum)
        return Stores(
            lease=lease,
            record=ScriptLeaseStore(data, cluster, quorum=quorum),
            handoffs=ScriptHandoffStore(data, cluster, quorum=quorum),
            feed=RedisFeed(connection_to(address, login), cluster),
            registry=ScriptRegistry(data, cluster),
            checkpoint=parts.checkpoint,
        )

    @property
    def membership(self) -> Membership:
        return self._membership

    def leg_stamp(self) -> str | None:
        return self._stamped.text(self.gate.leg_epoch)

    def probe_stamp(self) -> str | None:
        return self._stamped.text(self.gate.probe_epoch(self._clock.now()))

    def when_restoring(self, introduce: Callable[[], None]) -> None:
        self._membership.takeover.introduce = introduce

    def when_open(self, probe: Callable[[], None]) -> None:
        self._membership.member.opened = probe

    def when_ended(self, abandon: Callable[[], None]) -> None:
        self._membership.member.ended = abandon

    def handoff(self) -> HandoffView | None:
        return self._membership.view.handoff(self._clock.now())

    def heard(self, router_id: str) -> None:
        self._membership.court.heard(router_id)

    async def yield_lease(self, to: str | None) -> YieldAnswer:
        return await self._membership.yielding.order(to)

    async def pledge(self, question: PledgeQuestion) -> PledgeAnswer:
        return await self._membership.keeper.pledge(question)

    async def run(self) -> None:
        self._keeper.start()
        works = (self._membership.member.run(), _until(self._keeper.ended), self._advise())
        await first_failure(*works)

    async def shut_down(self) -> None:
        await self._membership.member.shut_down()

    async def finish(self) -> None:
        await self._membership.member.finish()

    async def aclose(self) -> None:
        self._membership.keeper.stop()
        if not await asyncio.to_thread(self._keeper.join):
            log.warning("the lease keeper did not end in time")
        for store in (self._stores.feed, self._stores.handoffs, self._stores.registry, self._peers):
            await store.aclose()

    def _tell(self, told: Effect | LeaseSight) -> None:
        """On the keeper's thread: an effect for the main loop."""
        with contextlib.suppress(RuntimeError):  # the main loop has closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._membership.member.take, told)

    async def _advise(self) -> None:
        """Says once what is risky about the server. Raises StoreProtocolError for one that cannot be used."""
        while True:
            try:
                sentences = await inspect_server(self._data, quorum=self._quorum, timeout_s=INSPECT_S)
            except StoreUnreachable:
                await asyncio.sleep(INSPECT_PAUSE_S)
                continue
            for sentence in sentences:
                log.warning("%s", sentence)
            return


def _closing(lease: LeaseStore, peers: HttpPeers) -> Callable[[], Awaitable[None]]:
    """What the keeper's loop holds, given back there."""

    async def close() -> None:
        await peers.aclose()
        await lease.aclose()

    return close


def _member_settings(parts: ControlParts) -> MemberSettings:
    options = parts.options
    return MemberSettings(
        cluster=options.cluster,
        meta=owner_meta(options),
        identity=parts.identity,
        timings=options.timings,
        prefer_standby=options.standby or bool(options.standby_of),
        resume=options.resume,
        max_handoff_age_s=options.standby_max_handoff_age_s,
        config_digest=parts.config_digest,
        contract_digest=parts.contract_digest,
        section_digests=parts.section_digests,
        failsafe=options.failsafe,
        takeover_after=options.standby_takeover_after,
        failure_limit=parts.failure_limit,
    )
