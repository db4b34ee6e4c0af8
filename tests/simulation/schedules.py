"""Schedules that random faults meet rarely: each harms a cluster in which the rule that it is for is broken.

In all of them `a` is the first owner, `b` and `c` stand by, and no packet is slow unless a schedule says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from narwhal.policy import death
from narwhal.policy.death import ProcessSight
from tests.simulation.engines import ENGINES
from tests.simulation.network import DATA, FEED, LEASE, copy_of
from tests.simulation.routers import Sent, SimRouter
from tests.simulation.stage import Stage

LONG_S = 12.0
"""A partition that outlives every deadline and every watch."""


async def settled(stage: Stage) -> SimRouter:
    """The first owner, some renewals later."""
    owner = await stage.owner()
    await asyncio.sleep(3.0)
    return owner


async def renewal(stage: Stage, owner: SimRouter) -> Sent:
    """The next renewal that `owner` sends, caught as it goes out."""
    return await stage.caught(lambda sent: sent.router is owner and sent.script == "lease_renew")


def cut(stage: Stage, router: SimRouter, *connections: str, seconds: float = LONG_S) -> None:
    """Cuts connections, all if none is named."""
    wire = stage.net.wire(router.host.name)
    wire.cut, wire.cut_until = frozenset(connections), stage.loop.time() + seconds


# --- deadlines ---------------------------------------------------------------------------------------


async def late_reading(stage: Stage) -> None:
    """The owner sends a renewal, sleeps 2.5 s, reads the reply, and is cut off from the store."""
    owner = await settled(stage)
    wire = stage.net.wire(owner.host.name)
    wire.stun_s, wire.stun_lease = 2.5, True
    await stage.until(lambda: wire.stun_s == 0.0)
    await asyncio.sleep(0.2)
    cut(stage, owner)


async def lost_acquire_replies(stage: Stage) -> None:
    """A successor's acquire takes at once, is confirmed 3.1 s later, opens, and is cut off from the store."""
    dead = await stage.owner()
    dead.kill()
    takers: list[str] = []

    def applied(router: str) -> None:
        stage.checkers.after_write(router)
        lease = stage.net.store.server.data.lease
        if lease.get("owner") == router != dead.host.name and not takers:
            takers.append(router)
            stage.net.wire(router).deaf_lease_until = stage.loop.time() + 3.1

    stage.net.on_applied = applied
    taker = await stage.owner()
    assert [taker.host.name] == takers
    cut(stage, taker)


async def cut_off_after_a_renewal(stage: Stage) -> None:
    """The worst time for an owner to be cut off: a renewal has just been confirmed."""
    owner = await settled(stage)
    await renewal(stage, owner)
    await asyncio.sleep(0.02)
    cut(stage, owner)


async def deaf_for_two_attempts(stage: Stage) -> None:
    """Two attempts of a renewal take and their answers are lost; the third is answered, then all is cut."""
    owner = await settled(stage)
    await renewal(stage, owner)
    began = stage.loop.time()
    stage.net.wire(owner.host.name).deaf_lease_until = began + 2.0
    await stage.until(lambda: stage.loop.time() > began + 2.0)
    await renewal(stage, owner)
    await asyncio.sleep(0.02)
    cut(stage, owner)


# --- watching ----------------------------------------------------------------------------------------


async def step_forward(stage: Stage) -> None:
    """The calendar of the store's host jumps ahead by more than T."""
    await settled(stage)
    stage.net.store.server.step_clock(20.0)


async def _watched_and_silent(stage: Stage) -> tuple[SimRouter, Sent]:
    """A watcher has seen one renewal, then its keeper slept for most of T; it looks again in a moment.

    The owner went on renewing, and loses the store now. Returns owner and that renewal.
    """
    owner = await settled(stage)
    watcher, other = (router for router in stage.latest.values() if router is not owner)
    other.kill()
    first = await renewal(stage, owner)
    await asyncio.sleep(0.9)
    stage.loop.pause(watcher.keeper, stage.loop.time() + 4.5)
    await asyncio.sleep(4.49)
    cut(stage, owner, LEASE)
    return owner, first


async def late_copy_of_a_renewal(stage: Stage) -> None:
    """A copy of a renewal of 5 s ago arrives, just when a watcher that saw it then looks again."""
    _, first = await _watched_and_silent(stage)
    stage.arrives(first)


async def rolled_back_record(stage: Stage) -> None:
    """The store comes back as it was 5 s ago, just when a watcher that saw it then looks again."""
    store, copies = stage.net.store, {}

    def applied(router: str) -> None:
        stage.checkers.after_write(router)
        copies.setdefault(int(store.server.data.lease.get("seq", 0)), copy_of(store.server.data))

    stage.net.on_applied = applied
    _, first = await _watched_and_silent(stage)
    store.server.restart(copies[int(first.args[2])])
    stage.checkers.store_changed_by_fault()


async def emptied_under_an_owner(stage: Stage) -> None:
    """Everything is gone, and the owner cannot reach the store to put its record back."""
    owner = await settled(stage)
    await renewal(stage, owner)
    await asyncio.sleep(0.02)
    cut(stage, owner)
    stage.net.store.server.flush()
    stage.checkers.store_changed_by_fault()


async def overruled_and_rolled_back(stage: Stage) -> None:
    """An engine knows more than the owner that is cut off; when another owns, the store comes back as it was
    before that, and the cable is mended."""
    owner, store = await settled(stage), stage.net.store
    before = copy_of(store.server.data)
    cut(stage, owner, seconds=1e9)
    owner.parts.gate.overruled(ENGINES[0].iid, owner.parts.gate.epoch + 3)
    await stage.until(lambda: any(router.admits() for router in stage.latest.values()))
    store.server.restart(before)
    stage.checkers.store_changed_by_fault()
    stage.net.wire(owner.host.name).cut_until = 0.0


# --- replicas ------------------------------------------------------------------------------------------


async def isolated_master(stage: Stage) -> None:
    """The master loses its replica; the owner stays with it, all others go to the new one."""
    owner = await settled(stage)
    net, wire = stage.net, stage.net.wire(owner.host.name)
    wire.stuck_on, wire.stuck_until = net.store, stage.loop.time() + LONG_S
    net.promote()
    stage.checkers.store_changed_by_fault()
    net.at(LONG_S, net.resync)


# --- deaths --------------------------------------------------------------------------------------------


async def misread_death(stage: Stage, sight: ProcessSight) -> None:
    """Somebody looks at the owner's living process, sees `sight`, and releases its lease if that is death."""
    owner = await settled(stage)
    await renewal(stage, owner)
    await asyncio.sleep(0.02)
    cut(stage, owner, LEASE)
    record = dict(stage.net.store.server.data.lease)
    mark = death.ProcessMark.of_record(record)
    if death.proves_death(mark, replace(mark, pid=1), look=lambda pid: sight):
        args = (record["token"], f"{record['token']}:{record['seq']}", "its process has ended", "")
        stage.net.store.server.apply("lease_release", ("",) * 2, args=args)


async def not_permitted_to_signal(stage: Stage) -> None:
    await misread_death(stage, death.ProcessSight(death.Signalled.FORBIDDEN))


async def first_thread_has_ended(stage: Stage) -> None:
    await misread_death(stage, death.ProcessSight(death.Signalled.REACHED, "Z", "1"))


async def unreadable_start_time(stage: Stage) -> None:
    await misread_death(stage, death.ProcessSight(death.Signalled.REACHED, "S", ""))


# --- released records --------------------------------------------------------------------------------


async def _handed_over(stage: Stage) -> tuple[SimRouter, list[Sent]]:
    """The first owner yields; its successor, and the last renewal and the release of the first."""
    first = await settled(stage)
    last = await renewal(stage, first)
    await asyncio.sleep(0.02)
    first.ask_yield()
    release = await stage.caught(lambda sent: sent.script == "lease_release")
    await asyncio.sleep(0.05)
    return await stage.owner(), [last, release]


async def old_record_comes_back_released(stage: Stage) -> None:
    """The store restarts as it was before a handover, and a copy of the old owner's release arrives."""
    first = await stage.owner()
    await stage.until(lambda: first.parts.gate.may_admit(first.clock.now()))
    await asyncio.sleep(2.0)
    before = copy_of(stage.net.store.server.data)
    successor, (_, release) = await _handed_over(stage)
    cut(stage, successor, LEASE)
    stage.net.store.server.restart(before)
    stage.checkers.store_changed_by_fault()
    stage.arrives(release)


async def old_record_is_planted_and_released(stage: Stage) -> None:
    """FLUSHALL after a handover; late copies of the old owner's renewal and release arrive."""
    successor, copies = await _handed_over(stage)
    cut(stage, successor, LEASE)
    stage.net.store.server.flush()
    stage.checkers.store_changed_by_fault()
    for copy in copies:
        stage.arrives(copy)


# --- claims --------------------------------------------------------------------------------------------


async def a_common_cause(stage: Stage) -> None:
    """Every router's monitoring is degraded for half a minute: each has a reason to claim and to yield."""
    await settled(stage)
    for router in stage.latest.values():
        router.degraded_until = stage.loop.time() + 30.0


async def a_disk_that_fails_owners(stage: Stage) -> None:
    """Whoever owns cannot write its checkpoint, whoever stands by can: each owner's cause seems its own."""
    await settled(stage)
    while stage.loop.time() < 45.0:
        for router in stage.latest.values():
            router.host.checkpoint.fails_with = OSError("disk full") if router.admits() else None
        await asyncio.sleep(0.05)


# --- orders ---------------------------------------------------------------------------------------------


async def drained_behind_a_cut(stage: Stage) -> None:
    """An order to drain reaches an owner whose data connection is cut. It dies once it has answered, and
    its host with its checkpoint stays away."""
    owner = await settled(stage)
    cut(stage, owner, DATA, FEED)
    answer = owner.main.spawn(stage.operator.drain(owner, "e0"))
    await stage.until(answer.done)
    owner.kill()


# --- everything heals, nothing counts twice -------------------------------------------------------------


async def without_a_mirror(stage: Stage) -> None:
    """The owner dies, and the last router has never been able to read the log."""
    for name in ("b", "c"):
        wire = stage.net.wire(name)
        wire.cut, wire.cut_until = frozenset((FEED,)), 1e9
    (await settled(stage)).kill()


async def unanswered_flushes(stage: Stage) -> None:
    """Counters arrive at the store, the answers do not: they are sent again."""
    owner = await settled(stage)
    stage.net.wire(owner.host.name).deaf_until = stage.loop.time() + 1.5


async def fenced_elsewhere(stage: Stage) -> None:
    """The main loop has fenced the token; the keeper has not been told yet."""
    owner = await settled(stage)
    grip = owner.parts.gate.grip
    assert grip is not None
    owner.parts.gate.fence(grip.token, "an engine knows a higher epoch")
