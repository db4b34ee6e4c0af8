"""What can go wrong, by name: each takes the world and does its harm once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from narwhal.store.memory_scripts import Data
from tests.simulation.engines import ENGINES
from tests.simulation.network import DATA, FEED, LEASE, Node
from tests.simulation.routers import SimRouter

if TYPE_CHECKING:
    from tests.simulation.world import World

LONG_AGO_S = 1e6
WARDEN_KILLS_S = 2.1
"""A warden kills a router whose main loop was silent for so long."""

FAULTS: dict[str, Callable[[Mischief], None]] = {}


def fault(act: Callable[[Mischief], None]) -> Callable[[Mischief], None]:
    FAULTS[act.__name__] = act
    return act


class Mischief:
    """Strikes the world with named faults; owners are hit more often than standbys."""

    def __init__(self, world: World, *, calm_at: float) -> None:
        """What faults do is over at `calm_at`, apart from what is under way then."""
        self.world = world
        self.calm_at = calm_at
        self.rng = world.rng
        self.net = world.net

    @property
    def store(self) -> Node:
        """The present master."""
        return self.net.store

    @property
    def silent(self) -> bool:
        """The master answers nobody just now."""
        return max(self.store.down_until, self.store.frozen_until) > self.net.loop.time()

    def strike(self, name: str) -> None:
        self.world.trace(f"fault {name}")
        FAULTS[name](self)

    def victim(self) -> SimRouter | None:
        living = [router for router in self.world.current().values() if router.alive]
        owners = [router for router in living if router.admits()]
        if owners and self.rng.random() < 0.6:
            return owners[0]
        return self.rng.choice(living) if living else None

    def until(self, low: float, high: float) -> float:
        return self.net.loop.time() + self.span(low, high)

    def span(self, low: float, high: float) -> float:
        left = self.calm_at - self.net.loop.time()
        return min(self.rng.uniform(low, high), max(0.5, left))

    def lose(self, data: Data | None) -> None:
        """The server goes on with older or no data, and its replicas with it."""
        self.store.server.data = Data() if data is None else data
        self.changed()

    def changed(self) -> None:
        self.net.resync()
        self.world.checkers.store_changed_by_fault()

    def restart(self, data: Data | None, down_s: float) -> None:
        """Replicas hear of it when the server is back."""
        node = self.store
        node.down_until, node.frozen_until = self.net.loop.time() + down_s, 0.0
        node.server.restart(data)
        self.world.checkers.store_changed_by_fault()
        self.net.at(down_s, self.net.resync)

    def fail_over(self, after_s: float, *, old_back_s: float) -> None:
        """The master is gone; the best replica takes its place, and the old one comes back as a replica."""
        node = self.store
        node.down_until = self.net.loop.time() + old_back_s
        self.net.at(after_s, self.promote, node)
        self.net.at(old_back_s, self.net.resync)

    def promote(self, old: Node) -> None:
        if self.store is old and len(self.net.nodes) > 1:
            self.net.promote()
            self.world.checkers.store_changed_by_fault()

    def die_behind(self) -> None:
        self.fail_over(self.span(0.3, 2.0), old_back_s=self.span(3.0, 8.0))
        for node in self.net.nodes:
            node.server.lagging = False

    def caught_up(self) -> None:
        for node in self.net.nodes:
            node.server.lagging = False
            node.server.catch_up()

    def revive(self, router: SimRouter) -> None:
        if self.world.current()[router.host.name] is router:
            self.world.spawn(router.host.name)

    def kill_stalled(self, router: SimRouter) -> None:
        if router.alive:
            self.crash(router)

    def crash(self, router: SimRouter) -> None:
        router.kill()
        self.net.at(self.span(0.3, 6.0), self.revive, router)


# --- routers -----------------------------------------------------------------------------------------


@fault
def pause(mischief: Mischief) -> None:
    """SIGSTOP, a long collection, a sleeping host."""
    if victim := mischief.victim():
        victim.pause(mischief.span(0.5, 12.0))


@fault
def stall(mischief: Mischief) -> None:
    """The main loop hangs, the keeper's thread goes on."""
    if victim := mischief.victim():
        stalled_s = mischief.span(0.5, 10.0)
        victim.pause(stalled_s, main_only=True)
        if victim.host.warden and stalled_s > WARDEN_KILLS_S:
            mischief.net.at(WARDEN_KILLS_S, mischief.kill_stalled, victim)


@fault
def hold(mischief: Mischief) -> None:
    """Paused between the check and the send."""
    if victim := mischief.victim():
        mischief.net.wire(victim.host.name).hold_s = mischief.span(0.5, 12.0)


@fault
def stun(mischief: Mischief) -> None:
    """Paused right after a send: the reply is read late."""
    if victim := mischief.victim():
        mischief.net.wire(victim.host.name).stun_s = mischief.span(0.5, 8.0)


@fault
def crash(mischief: Mischief) -> None:
    if victim := mischief.victim():
        mischief.crash(victim)


@fault
def crash_all(mischief: Mischief) -> None:
    for router in list(mischief.world.current().values()):
        if router.alive:
            mischief.crash(router)


@fault
def yield_lease(mischief: Mischief) -> None:
    for router in mischief.world.current().values():
        if router.admits():
            router.ask_yield(mischief.rng.choice(["", *mischief.world.hosts]))


@fault
def degrade_everyone(mischief: Mischief) -> None:
    """A common cause: no router's monitoring works."""
    until = mischief.until(5.0, 11.0)
    for router in mischief.world.current().values():
        router.degraded_until = until


@fault
def degrade_one(mischief: Mischief) -> None:
    if victim := mischief.victim():
        victim.degraded_until = mischief.until(5.0, 11.0)


@fault
def break_disk(mischief: Mischief) -> None:
    """One host's state directory cannot be written for a while, whatever router runs there."""
    if victim := mischief.victim():
        broken = OSError("No space left on device")
        victim.host.checkpoint.fails_with = broken
        mischief.net.at(mischief.span(6.0, 11.0), mend_disk, victim, broken)


def mend_disk(router: SimRouter, broken: OSError) -> None:
    if router.host.checkpoint.fails_with is broken:
        router.host.checkpoint.fails_with = None


@fault
def depose(mischief: Mischief) -> None:
    """An operator ends what the record tells, by compare-and-set, whether or not its owner lives."""
    server = mischief.store.server
    lease = server.data.lease
    if lease and not mischief.silent:
        version = f"{lease['token']}:{lease['seq']}"
        server.apply("lease_depose", ("",) * 4, args=(version, "operator"))
        mischief.world.checkers.after_write("operator")


@fault
def restart_engine(mischief: Mischief) -> None:
    """One engine forgets; the owner's next check teaches it."""
    mischief.world.engines.restart(mischief.rng.choice(ENGINES).iid)


@fault
def outbid(mischief: Mischief) -> None:
    """One engine knows of a higher epoch than the owner's: its next request there is refused."""
    mischief.world.engines.outbid(mischief.rng.choice(ENGINES).iid, mischief.rng.randint(1, 5))


@fault
def forget_everything(mischief: Mischief) -> None:
    """Every process ends, no checkpoint is left, and the store is back empty with its calendar set back: only
    the engines know which epochs there were."""
    crash_all(mischief)
    for host in mischief.world.hosts.values():
        host.checkpoint.record = None
    mischief.store.server.step_clock(-LONG_AGO_S)
    restart_empty(mischief)
    mischief.world.checkers.only_engines_remember()


# --- the network -------------------------------------------------------------------------------------


@fault
def partition(mischief: Mischief) -> None:
    if victim := mischief.victim():
        wire = mischief.net.wire(victim.host.name)
        wire.cut, wire.cut_until = frozenset(), mischief.until(0.5, 12.0)


@fault
def partition_partly(mischief: Mischief) -> None:
    """One or two of the three connections are cut, the others work."""
    if victim := mischief.victim():
        wire = mischief.net.wire(victim.host.name)
        wire.cut = frozenset(mischief.rng.sample((LEASE, DATA, FEED), mischief.rng.choice((1, 2))))
        wire.cut_until = mischief.until(0.5, 12.0)


@fault
def lossy(mischief: Mischief) -> None:
    """Many requests and replies are lost, others arrive."""
    for name in mischief.world.hosts:
        if mischief.rng.random() < 0.6:
            wire = mischief.net.wire(name)
            wire.loss, wire.loss_until = mischief.rng.uniform(0.1, 0.7), mischief.until(1.0, 9.0)


@fault
def slow_everywhere(mischief: Mischief) -> None:
    """A common cause: everything takes long, for everyone."""
    mischief.net.slow_until = mischief.until(2.0, 9.0)


@fault
def late(mischief: Mischief) -> None:
    """Requests arrive up to 7 s later, long after their sender gave up."""
    if victim := mischief.victim():
        mischief.net.wire(victim.host.name).slow_until = mischief.until(0.5, 4.0)


@fault
def deaf(mischief: Mischief) -> None:
    """Requests arrive, replies do not."""
    if victim := mischief.victim():
        mischief.net.wire(victim.host.name).deaf_until = mischief.until(0.5, 7.0)


@fault
def twice(mischief: Mischief) -> None:
    """Requests arrive a second time, later."""
    if victim := mischief.victim():
        mischief.net.wire(victim.host.name).twice_until = mischief.until(0.5, 10.0)


@fault
def part_routers(mischief: Mischief) -> None:
    """Routers cannot reach each other; what they reach of the store is another matter."""
    names = list(mischief.world.hosts)
    for index, one in enumerate(names):
        for other in names[index + 1 :]:
            if mischief.rng.random() < 0.6:
                mischief.net.part(one, other, until=mischief.until(1.0, 10.0))


# --- the store ---------------------------------------------------------------------------------------


@fault
def freeze(mischief: Mischief) -> None:
    mischief.store.frozen_until = mischief.until(0.5, 9.0)


@fault
def outage(mischief: Mischief) -> None:
    """The store is away for longer than any lease lasts."""
    mischief.store.down_until = mischief.until(4.0, 11.0)


@fault
def restart_empty(mischief: Mischief) -> None:
    mischief.restart(None, mischief.span(0.05, 8.0))


@fault
def restart_whole(mischief: Mischief) -> None:
    mischief.restart(mischief.store.server.data, mischief.span(0.05, 8.0))


@fault
def restart_rolled_back(mischief: Mischief) -> None:
    now = mischief.net.loop.time()
    mischief.restart(mischief.store.as_of(now - mischief.rng.uniform(0.0, 3.0)), mischief.span(0.05, 6.0))


@fault
def flush(mischief: Mischief) -> None:
    mischief.lose(None)


@fault
def delete_lease(mischief: Mischief) -> None:
    mischief.store.server.data.lease = {}
    mischief.changed()


@fault
def evict(mischief: Mischief) -> None:
    """Lease, epoch and log are gone, the rest stays."""
    data = mischief.store.server.data
    mischief.lose(Data(handoff=data.handoff, totals=data.totals))


@fault
def delete_some_keys(mischief: Mischief) -> None:
    """A hand deletes some keys and leaves the others."""
    data, fresh = mischief.store.server.data, Data()
    for keys in (
        ("lease",),
        ("epoch",),
        ("handoff",),
        ("totals",),
        ("log", "log_top"),
        ("routers", "entries"),
    ):
        if mischief.rng.random() < 0.4:
            for key in keys:
                setattr(data, key, getattr(fresh, key))
    mischief.changed()


@fault
def change_incarnation(mischief: Mischief) -> None:
    mischief.store.server.change_replid()


@fault
def step_clock(mischief: Mischief) -> None:
    mischief.store.server.step_clock(mischief.rng.choice([-12.0, -3.0, 3.0, 7.0, 20.0]))


@fault
def failover(mischief: Mischief) -> None:
    """The master dies with all that it has at its replicas."""
    if len(mischief.net.nodes) > 1:
        for node in mischief.net.nodes:
            node.server.catch_up()
        mischief.fail_over(mischief.span(0.3, 3.0), old_back_s=mischief.span(3.0, 8.0))


@fault
def failover_with_loss(mischief: Mischief) -> None:
    """The replicas were behind when the master died: what they had not applied is gone."""
    if len(mischief.net.nodes) > 1:
        behind_s = mischief.span(0.1, 2.5)
        for node in mischief.net.nodes:
            node.server.lagging = True
        mischief.net.at(behind_s, mischief.die_behind)


@fault
def lag(mischief: Mischief) -> None:
    """Replicas are behind for a while."""
    lagging = [node for node in mischief.net.nodes if mischief.rng.random() < 0.7]
    for node in lagging:
        node.server.lagging = True
    mischief.net.at(mischief.span(0.2, 4.0), mischief.caught_up)


@fault
def isolate_primary(mischief: Mischief) -> None:
    """The master loses replicas and Sentinels, but not all routers: they go on with it until they notice."""
    net, old = mischief.net, mischief.store
    if len(net.nodes) < 2:
        return
    for node in net.nodes:
        if node is not old:
            node.server.detach()
    for name in mischief.world.hosts:
        if mischief.rng.random() < 0.5:
            wire = net.wire(name)
            wire.stuck_on, wire.stuck_until = old, mischief.until(2.0, 9.0)
    owners = [router.host.name for router in mischief.world.current().values() if router.admits()]
    for name in owners:
        net.wire(name).stuck_on, net.wire(name).stuck_until = old, mischief.until(4.0, 9.0)
    net.at(mischief.span(0.3, 2.0), mischief.promote, old)
    net.at(mischief.span(9.0, 10.0), net.resync)
