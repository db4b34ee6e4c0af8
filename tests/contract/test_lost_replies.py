"""Replies that never come, writes that run late, connections that end at the wrong moment."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from narwhal.errors import StoreUnreachable
from narwhal.model.handoff import EntryKind, LogPosition
from narwhal.model.lease import HeldBy, LeaseState, OldEpoch, OwnerMeta, Published, Renewed, Stale, TopIs
from narwhal.model.request import Counters
from narwhal.model.store_call import AcquireRequest, AppendRequest, PublishRequest, RenewRequest
from narwhal.store.connection import RedisConnection
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.keys import SCRIPT_KEYS
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.quorum import Quorum
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner, load
from tests.support.fault_proxy import Fate, fault_proxy
from tests.support.redis import LOGIN, PATIENT, confirms, running

A = OwnerMeta("a", "http://a:1")
B = OwnerMeta("b", "http://b:1")
S = 15.0
FAST = 0.3


@pytest.fixture
def door(server):
    """The scripts are known, so that the reply that is lost is never NOSCRIPT."""
    with server.client() as client:
        client.flushall()
        for name in SCRIPT_KEYS:
            client.script_load(load(name).body)
    with fault_proxy(server.port) as proxy:
        yield proxy


@asynccontextmanager
async def stores(door, server, quorum=None):
    address = replace(server.address, hosts=(("127.0.0.1", door.port),))
    runner = RedisRunner(RedisConnection(address, LOGIN, waits=PATIENT))
    lease = ScriptLeaseStore(runner, "t", quorum=quorum)
    try:
        yield lease, ScriptHandoffStore(runner, "t", quorum=quorum), ScriptRegistry(runner, "t")
    finally:
        await runner.aclose()


async def request(lease, token="ta", meta=A):
    await lease.claim("n-" + token, floor=0, ttl_ms=5000, timeout_s=S)
    view = await lease.peek(timeout_s=S)
    return AcquireRequest(token, meta, view.version, str(view.inc), 0, 5000)


def renewal(taken, seq):
    return RenewRequest("ta", A, taken.epoch, seq, taken.life, 5000)


async def lost(door, fate, call, what):
    """The call with that fate for its request; it must have no answer."""
    door.judge = lambda asked: fate if asked.what == what else Fate.PASS
    with pytest.raises(StoreUnreachable):
        await call(S if fate is Fate.CUT else FAST)
    door.judge = lambda asked: Fate.PASS


def test_every_operation_may_lose_its_reply_and_be_repeated(door, server):
    async def scenario():
        async with stores(door, server) as (lease, handoff, registry):
            asked = await request(lease)
            await lost(door, Fate.SWALLOW, lambda s: lease.acquire(asked, timeout_s=s), "lease_acquire")
            taken = await lease.acquire(asked, timeout_s=S)
            assert taken.again

            first, at = renewal(taken, 1), LogPosition(taken.epoch, 2)
            await lost(door, Fate.SWALLOW, lambda s: lease.renew(first, timeout_s=s), "lease_renew")
            assert await lease.renew(first, timeout_s=S) == Stale()
            assert isinstance(await lease.renew(renewal(taken, 2), timeout_s=S), Renewed)

            delta = AppendRequest("ta", at, EntryKind.DELTA, {"x": 1})
            await lost(door, Fate.SWALLOW, lambda s: handoff.append(delta, timeout_s=s), "log_append")
            assert await handoff.append(delta, timeout_s=S) == TopIs(str(at))

            told = PublishRequest("ta", taken.epoch, 1, at, b"{}")
            await lost(door, Fate.SWALLOW, lambda s: handoff.publish(told, timeout_s=s), "handoff_publish")
            assert await handoff.publish(told, timeout_s=S) == OldEpoch(taken.epoch)
            again = PublishRequest("ta", taken.epoch, 2, at, b"{}")
            assert isinstance(await handoff.publish(again, timeout_s=S), Published)

            counts = {"r": Counters(served=3)}
            flush = lambda s: handoff.flush_totals(counts, timeout_s=s)  # noqa: E731
            await lost(door, Fate.SWALLOW, flush, "totals_flush")
            assert await flush(S) == counts

            claim = lambda s: registry.put_claim("b", epoch=taken.epoch, reason="x", timeout_s=s)  # noqa: E731
            await lost(door, Fate.SWALLOW, claim, "claim_put")
            assert await claim(S)
            assert len((await lease.renew(renewal(taken, 3), timeout_s=S)).claims) == 1

            version = (await lease.peek(timeout_s=S)).version
            depose = lambda s: lease.depose(version, reason="x", timeout_s=s)  # noqa: E731
            await lost(door, Fate.SWALLOW, depose, "lease_depose")
            assert await depose(S)
            release = lambda s: lease.release("ta", reason="x", timeout_s=s)  # noqa: E731
            await lost(door, Fate.SWALLOW, release, "lease_release")
            assert await release(S) is True
            return await lease.peek(timeout_s=S), await handoff.read_log(LogPosition(), timeout_s=S)

    view, entries = asyncio.run(scenario())
    assert view.state is LeaseState.RELEASED
    assert [str(entry.kind) for entry in entries] == ["delta", "snapshot", "snapshot", "released"]


def test_a_write_that_arrives_after_its_deadline_changes_nothing_that_came_later(door, server):
    """A renewal, an acquire and a snapshot held in the network while others go past them."""

    async def scenario():
        async with stores(door, server) as (lease, handoff, _):
            taken = await lease.acquire(await request(lease), timeout_s=S)
            late = renewal(taken, 1)
            await lost(door, Fate.LATE, lambda s: lease.renew(late, timeout_s=s), "lease_renew")
            told = PublishRequest("ta", taken.epoch, 1, LogPosition(taken.epoch, 1), b'{"v":1}')
            await lost(door, Fate.LATE, lambda s: handoff.publish(told, timeout_s=s), "handoff_publish")
            await lease.renew(renewal(taken, 2), timeout_s=S)
            newer = PublishRequest("ta", taken.epoch, 2, LogPosition(taken.epoch, 1), b'{"v":2}')
            await handoff.publish(newer, timeout_s=S)
            rival = await request(lease, "tb", B)
            await lost(door, Fate.LATE, lambda s: lease.acquire(rival, timeout_s=s), "lease_acquire")
            await lease.renew(renewal(taken, 3), timeout_s=S)
            count = await asyncio.to_thread(door.release_late)
            stored = await handoff.load(timeout_s=S)
            return count, await lease.peek(timeout_s=S), stored, await lease.acquire(rival, timeout_s=S)

    count, view, stored, refused = asyncio.run(scenario())
    assert count == 3
    assert (view.owner, view.version.token, view.version.seq) == ("a", "ta", 3)
    assert stored.document == b'{"v":2}'
    assert isinstance(refused, HeldBy)


def test_a_reconnect_between_a_write_and_its_confirmation_is_no_answer(door, server, tmp_path):
    """WAIT on another socket would count what that one wrote: nothing."""
    with running(server.kind, tmp_path / "replica") as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", str(server.port))
        server.wait_until(confirms)

        async def scenario():
            async with stores(door, server, Quorum()) as (lease, _, _):
                taken = await lease.acquire(await request(lease), timeout_s=S)
                first = renewal(taken, 1)
                door.seen.clear()
                await lost(door, Fate.CUT, lambda s: lease.renew(first, timeout_s=s), "lease_renew")
                cut, door.seen[:] = list(door.seen), []
                return cut, await lease.renew(renewal(taken, 2), timeout_s=S), list(door.seen)

        cut, renewed, whole = asyncio.run(scenario())
    server.wait_until(lambda client: client.info("replication")["connected_slaves"] == 0)
    assert cut == ["lease_renew"], "no WAIT was asked on a socket that had not written"
    assert isinstance(renewed, Renewed)
    assert whole[-2:] == ["lease_renew", "WAIT"]


def test_scripts_forgotten_all_the_time_cost_nothing_but_their_text(door, server):
    async def scenario():
        async with stores(door, server) as (lease, handoff, _):
            taken = await lease.acquire(await request(lease), timeout_s=S)
            with server.client() as client:
                for seq in range(1, 30):
                    client.script_flush()
                    assert isinstance(await lease.renew(renewal(taken, seq), timeout_s=S), Renewed)
                    client.script_flush()
                    told = PublishRequest("ta", taken.epoch, seq, LogPosition(taken.epoch, 1), b"{}")
                    assert isinstance(await handoff.publish(told, timeout_s=S), Published)

    asyncio.run(scenario())
