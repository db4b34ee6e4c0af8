"""Schedules that random faults meet rarely: one for each rule that they would break (cluster.md 2, 5, 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from narwhal.model.lease import Acquired, HeldBy, LeaseState, LeaseVersion, LeaseView, OwnerMeta, Renewed
from narwhal.ports import AcquireRequest, RenewRequest
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryRunner, MemoryServer
from tests.simulation.stage import Stage, play
from tests.support.broken_rules import AgainFromRetry, DeadlineFromReply

# --- the deadline ------------------------------------------------------------------------------------


async def late_reading(stage: Stage) -> None:
    """The owner sends a renewal, sleeps 2.5 s, reads the reply, and is cut off from the store."""
    owner = await stage.owner()
    await asyncio.sleep(3.0)
    wire = stage.net.wire(owner.host.name)
    wire.stun_s, wire.stun_lease = 2.5, True
    await stage.until(lambda: wire.stun_s == 0.0)
    await asyncio.sleep(0.2)
    wire.cut_until = stage.loop.time() + 12.0


def test_a_reply_that_is_read_late_does_not_prolong_the_lease() -> None:
    assert play(late_reading).error == ""


def test_a_deadline_counted_from_the_reply_is_caught() -> None:
    assert play(late_reading, election=DeadlineFromReply).error.startswith("Violation: I1")


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
    stage.net.wire(taker.host.name).cut_until = stage.loop.time() + 12.0


def test_lost_acquire_replies_do_not_prolong_the_lease() -> None:
    assert play(lost_acquire_replies).error == ""


def test_a_deadline_counted_from_the_retry_is_caught() -> None:
    assert play(lost_acquire_replies, election=AgainFromRetry).error.startswith("Violation: I1")


# --- taking over -------------------------------------------------------------------------------------


def test_a_clean_switch_takes_milliseconds_and_loses_no_count() -> None:
    gaps: list[float] = []

    async def switch(stage: Stage) -> None:
        for _ in range(8):
            owner = await stage.owner()
            await asyncio.sleep(2.0)
            began = stage.loop.time()
            owner.ask_yield()
            await stage.until(lambda owner=owner: not owner.admits())
            await stage.owner()
            gaps.append(stage.loop.time() - began)
        stage.trace(f"counted {[router.counted for router in stage.lives]}")

    outcome = play(switch, duration_s=60.0)
    assert outcome.error == ""
    assert sorted(gaps)[4] < 0.05
    assert max(gaps) < 0.5


def test_a_killed_owner_is_followed_within_ttl_and_its_counts_survive_but_the_last_flush() -> None:
    lost: list[int] = []

    async def kill(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(5.0)
        owner.kill()
        died = stage.loop.time()
        successor = await stage.owner()
        assert 3.0 <= stage.loop.time() - died <= 5.5
        assert successor.parts.gate.epoch > owner.parts.gate.epoch
        recent = sum(died - at <= 0.1 for at in owner.counted_at)
        missing = owner.counted - stage.checkers.stored()[owner.run]
        lost.append(missing)
        assert 0 <= missing <= recent

    assert play(kill).error == ""
    assert lost


def test_a_stalled_main_loop_is_not_renewed_for() -> None:
    async def stall(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(2.0)
        owner.pause(9.0, main_only=True)
        began = stage.loop.time()
        await stage.until(lambda: not owner.admits())
        successor = await stage.owner()
        assert successor is not owner
        assert stage.loop.time() - began < 9.0

    assert play(stall).error == ""


def test_an_emptied_restarted_store_within_the_deadline_changes_no_owner() -> None:
    async def restart(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(3.0)
        epoch = owner.parts.gate.epoch
        stage.net.store.down_until = stage.loop.time() + 2.0
        stage.net.store.server.restart(None)
        stage.checkers.store_changed_by_fault()
        await asyncio.sleep(8.0)
        assert owner.admits() and owner.parts.gate.epoch == epoch
        assert stage.net.store.server.data.handoff["epoch"] == str(epoch)

    assert play(restart).error == ""


def test_epochs_grow_when_everyone_died_and_the_store_is_empty_and_its_clock_is_wrong() -> None:
    async def wipe(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(4.0)
        epoch = owner.parts.gate.epoch
        for router in list(stage.latest.values()):
            router.kill()
        stage.net.store.server.restart(None)
        stage.net.store.server.step_clock(-1_000_000.0)
        stage.checkers.store_changed_by_fault()
        for name in stage.hosts:
            stage.spawn(name)
        assert (await stage.owner()).parts.gate.epoch > epoch

    assert play(wipe).error == ""


def test_counters_survive_the_death_of_the_owner_together_with_the_store() -> None:
    async def wipe(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(6.0)
        known = owner.counted
        await asyncio.sleep(2.0)
        owner.kill()
        stage.net.store.server.restart(None)
        stage.checkers.store_changed_by_fault()
        successor = await stage.owner()
        await asyncio.sleep(1.0)
        assert known <= successor.totals.vector()[owner.run].served <= owner.counted

    assert play(wipe).error == ""


def test_a_fenced_router_comes_back_by_itself_under_another_token() -> None:
    async def cut(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(2.0)
        holder = owner.parts.gate.holder
        stage.net.wire(owner.host.name).cut_until = stage.loop.time() + 8.0
        await asyncio.sleep(12.0)
        assert not owner.admits()
        for router in stage.latest.values():
            if router is not owner:
                router.kill()
        await asyncio.sleep(8.0)
        assert owner.admits()
        assert owner.parts.gate.holder != holder

    assert play(cut).error == ""


def test_the_preferred_successor_takes_a_yielded_lease() -> None:
    async def switch(stage: Stage) -> None:
        for _ in range(4):
            owner = await stage.owner()
            await asyncio.sleep(4.0)
            wanted = max(name for name in stage.hosts if name != owner.host.name)
            owner.ask_yield(wanted)
            await asyncio.sleep(0.7)
            assert (await stage.owner()).host.name == wanted

    assert play(switch).error == ""


# --- the record's life -------------------------------------------------------------------------------

META = OwnerMeta("r", "http://r")
TIMEOUT_S = 0.8


class Bench:
    """One server and a hand on its scripts, without any router."""

    def __init__(self) -> None:
        self.server = MemoryServer(lambda: 1_700_000_000.0)
        self.store = ScriptLeaseStore(MemoryRunner(self.server), "bench")

    async def peek(self) -> LeaseView:
        return await self.store.peek(timeout_s=TIMEOUT_S)

    async def acquire(self, token: str, *, floor: int = 0) -> Acquired:
        view = await self.peek()
        assert view.version is not None
        request = AcquireRequest(token, META, view.version, str(view.inc), floor, 5000)
        reply = await self.store.acquire(request, timeout_s=TIMEOUT_S)
        assert isinstance(reply, Acquired)
        return reply

    async def renew(self, token: str, lease: Acquired, *, seq: int) -> object:
        request = RenewRequest(token, META, lease.epoch, seq, lease.life, 5000)
        return await self.store.renew(request, timeout_s=TIMEOUT_S)


async def lossy_restart(bench: Bench) -> Acquired:
    """A's record comes back with the restart, while B, its successor, is within its D."""
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    first = await bench.acquire("a")
    await bench.renew("a", first, seq=1)
    before = bench.server.data.copy()
    await bench.acquire("b")
    bench.server.restart(before)
    return first


async def flushed(bench: Bench) -> Acquired:
    """The same under one incarnation: everything is gone, and A's late renewal plants its record anew."""
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    first = await bench.acquire("a")
    await bench.acquire("b")
    bench.server.flush()
    return first


@pytest.mark.parametrize("loss", [lossy_restart, flushed])
async def test_a_record_that_came_back_is_not_taken_at_once_when_its_dead_holder_is_released(
    loss: Callable[[Bench], Awaitable[Acquired]],
) -> None:
    bench = Bench()
    first = await loss(bench)
    await bench.renew("a", first, seq=7)
    assert await bench.store.release("a", reason="died", timeout_s=TIMEOUT_S) is True
    view = await bench.peek()
    assert view.state is LeaseState.RELEASED
    assert not view.released_for_sure


async def test_a_clean_release_may_be_taken_at_once() -> None:
    bench = Bench()
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    lease = await bench.acquire("a")
    assert isinstance(await bench.renew("a", lease, seq=1), Renewed)
    await bench.store.release("a", reason="yield", timeout_s=TIMEOUT_S)
    assert (await bench.peek()).released_for_sure


async def test_a_late_acquire_of_an_older_sight_takes_nothing() -> None:
    bench = Bench()
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    view = await bench.peek()
    await bench.acquire("a")
    late = AcquireRequest("b", META, LeaseVersion("marker", 0), str(view.inc), 0, 5000)
    assert isinstance(await bench.store.acquire(late, timeout_s=TIMEOUT_S), HeldBy)
