"""The network between routers and the store's servers, and the troubles of both."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from narwhal.errors import StoreUnreachable
from narwhal.store.memory import MemoryServer
from narwhal.store.memory_scripts import Data
from tests.support.virtual_time import Strand, VirtualLoop

R = TypeVar("R")
NOBODY = contextvars.Context()
CALENDAR_S = 1_700_000_000.0
SNAPSHOT_S = 0.25
LEASE, DATA, FEED = "lease", "data", "feed"


def copy_of(data: Data) -> Data:
    """An independent copy; values inside records are never changed in place, so one level is enough."""
    return replace(
        data,
        lease=dict(data.lease),
        handoff=dict(data.handoff),
        totals=dict(data.totals),
        log=list(data.log),
        claims=dict(data.claims),
        routers=dict(data.routers),
        entries=dict(data.entries),
    )


@dataclass(slots=True)
class Wire:
    """What is wrong between one router and the store, each until a virtual time."""

    cut_until: float = 0.0
    cut: frozenset[str] = frozenset()
    """The connections that are cut; empty: all of them."""
    loss: float = 0.0
    """The share of requests, and of replies, that is lost until `loss_until`."""
    loss_until: float = 0.0
    slow_until: float = 0.0
    deaf_until: float = 0.0
    deaf_lease_until: float = 0.0
    """Deaf on the lease connection only."""
    twice_until: float = 0.0
    stuck_on: Node | None = None
    """Still connected to this server, until `stuck_until`, though another is the master by now."""
    stuck_until: float = 0.0
    hold_s: float = 0.0
    """The next request is held so long between the router's check and its send; the router is paused."""
    stun_s: float = 0.0
    """The next request goes out, and the router is paused right after; the reply waits for it."""
    stun_lease: bool = False
    """Only a request of the lease connection is meant."""


@dataclass(slots=True, eq=False)
class Node:
    """One server with its past: `history` holds copies of its data for restarts that lose a little."""

    server: MemoryServer
    down_until: float = 0.0
    frozen_until: float = 0.0
    history: deque[tuple[float, Data]] = field(default_factory=lambda: deque(maxlen=40))

    def remember(self, now: float) -> None:
        if not self.history or now - self.history[-1][0] >= SNAPSHOT_S:
            self.history.append((now, copy_of(self.server.data)))

    def as_of(self, time: float) -> Data:
        older = [data for at, data in self.history if at <= time]
        return older[-1] if older else Data()


class Network:
    """Carries operations to the store and replies back, late, twice or never."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, *, replicas: int) -> None:
        self.loop = loop
        self.rng = rng
        self.nodes = [
            Node(MemoryServer(lambda: CALENDAR_S + loop.time(), number=number))
            for number in range(1 + replicas)
        ]
        self.store = self.nodes[0]
        """The server that counts as the master, for all but who is stuck on another."""
        self.resync()
        self.wires: dict[str, Wire] = {}
        self.parted: dict[frozenset[str], float] = {}
        self.calm = False
        """No packet is slower than usual."""
        self.slow_until = 0.0
        """Everything takes up to 0.6 s until then, for everyone."""
        self.on_applied: Callable[[str], None] = lambda router: None

    def part(self, one: str, other: str, *, until: float) -> None:
        """Two routers cannot reach each other."""
        self.parted[frozenset((one, other))] = until

    def are_parted(self, one: str, other: str) -> bool:
        return self.parted.get(frozenset((one, other)), 0.0) > self.loop.time()

    def wire(self, router: str) -> Wire:
        return self.wires.setdefault(router, Wire())

    def reached_by(self, router: str) -> Node:
        """The server that a router's next call goes to."""
        wire = self.wire(router)
        return wire.stuck_on if wire.stuck_on and wire.stuck_until > self.loop.time() else self.store

    def resync(self) -> None:
        """Everyone else is a replica of the master, with its data."""
        for node in self.nodes:
            if node is not self.store:
                node.server.follow(self.store.server)

    def promote(self) -> None:
        """The replica that has most becomes the master."""
        others = [node for node in self.nodes if node is not self.store]
        self.store = max(others, key=lambda node: node.server.offset)
        self.store.server.promote()

    def latency(self) -> float:
        if self.slow_until > self.loop.time():
            return self.rng.uniform(0.02, 0.6)
        chance = self.rng.random()
        if self.calm or chance < 0.97:
            return self.rng.expovariate(1000.0)
        return self.rng.uniform(0.01, 0.3) if chance < 0.995 else self.rng.uniform(0.3, 2.5)

    def at(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        """Schedules outside of every strand: the network does not pause with a router."""
        self.loop.call_later(delay, what, *args, context=NOBODY.copy())


class SimLink:
    """The memory store's `Link` of one connection of one router."""

    def __init__(self, net: Network, name: str, *, strands: tuple[Strand, ...], rate: float) -> None:
        """`name` is router/connection. The first of `strands` gets the replies; a hold pauses them all."""
        self._net = net
        self._router, self._connection = name.split("/")
        self._strands = strands
        self._strand = strands[0]
        self._rate = rate
        self._is_lease = self._connection == LEASE

    async def call(self, operation: Callable[[], R], *, timeout_s: float) -> R:
        loop = self._net.loop
        done: asyncio.Future[R] = loop.create_future()
        timer = loop.call_later(timeout_s / self._rate, _fail, done, "no answer")
        self._send(self._net.reached_by(self._router), operation, done)
        try:
            return await done
        finally:
            timer.cancel()

    def _send(self, node: Node, operation: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        net, wire, now = self._net, self._net.wire(self._router), self._net.loop.time()
        if self._lost(wire, now):
            return
        delay = net.latency()
        if wire.hold_s:
            delay, wire.hold_s = delay + wire.hold_s, 0.0
            for strand in self._strands:
                net.loop.pause(strand, now + delay - 0.0005)
        elif wire.stun_s and (not wire.stun_lease or self._is_lease):
            stun_s, wire.stun_s = wire.stun_s, 0.0
            for strand in self._strands:
                net.loop.pause(strand, now + stun_s)
        elif wire.slow_until > now:
            delay += net.rng.uniform(0.5, 7.0)
        net.at(delay, self._arrive, node, operation, done)
        if wire.twice_until > now:
            net.at(delay + net.rng.uniform(0.0, 3.0), self._arrive, node, operation, done)

    def _lost(self, wire: Wire, now: float) -> bool:
        """A message of this connection, either way, gets nowhere at this instant."""
        if wire.cut_until > now and (not wire.cut or self._connection in wire.cut):
            return True
        return wire.loss_until > now and self._net.rng.random() < wire.loss

    def _arrive(self, node: Node, operation: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        net, now = self._net, self._net.loop.time()
        if node.down_until > now:
            self._back(done, error="connection refused")
            return
        if node.frozen_until > now:
            after = node.frozen_until - now + net.rng.random() * 0.001
            net.at(after, self._arrive, node, operation, done)
            return
        node.remember(now)
        try:
            result = operation()
        except StoreUnreachable as error:
            self._back(done, error=str(error))
            return
        net.on_applied(self._router)
        self._back(done, result=result)

    def _back(self, done: asyncio.Future[Any], *, result: Any = None, error: str = "") -> None:
        wire, now = self._net.wire(self._router), self._net.loop.time()
        deaf = wire.deaf_until > now or (self._is_lease and wire.deaf_lease_until > now)
        if deaf or self._lost(wire, now):
            return
        self._net.loop.call_later(
            self._net.latency(), _settle, done, result, error, context=self._strand.context()
        )

    async def wait(self, seconds: float) -> None:
        loop = self._net.loop
        woken: asyncio.Future[None] = loop.create_future()
        forget = self._net.reached_by(self._router).server.on_change(lambda: self._ring(woken))
        timer = loop.call_later(seconds / self._rate, _settle, woken, None, "")
        try:
            await woken
        finally:
            timer.cancel()
            forget()

    def _ring(self, woken: asyncio.Future[None]) -> None:
        wire, now = self._net.wire(self._router), self._net.loop.time()
        if wire.deaf_until <= now and not self._lost(wire, now):
            self._net.loop.call_later(
                self._net.latency(), _settle, woken, None, "", context=self._strand.context()
            )


def _settle(future: asyncio.Future[Any], result: Any, error: str) -> None:
    if future.done():
        return
    if error:
        future.set_exception(StoreUnreachable(error))
    else:
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: str) -> None:
    _settle(future, None, error)
