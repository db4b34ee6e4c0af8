"""Sentinel addresses: the master is found, followed after a promotion, known while the Sentinels are away."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from narwhal.errors import StoreUnreachable
from narwhal.model.lease import Acquired, LeaseState, OwnerMeta, Renewed
from narwhal.model.store_call import AcquireRequest, RenewRequest
from narwhal.store.advice import inspect_server
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.quorum import Quorum
from narwhal.store.scripts import RedisRunner
from narwhal.store.sentinel import connection_to
from tests.support.redis import KINDS, LOGIN, answered
from tests.support.sentinel import watched

META = OwnerMeta("a", "http://a:1")
S = 15.0


@pytest.fixture(scope="module", params=KINDS)
def group(request, tmp_path_factory):
    """Shared; the tests that end something for good come last."""
    with watched(request.param, tmp_path_factory.mktemp("watched")) as made:
        yield made


@asynccontextmanager
async def lease_store(address, quorum=None):
    connection = connection_to(address, LOGIN, quorum=quorum or Quorum())
    store = ScriptLeaseStore(RedisRunner(connection), "t", quorum=quorum)
    try:
        yield store
    finally:
        await store.aclose()


async def peek(lease):
    return (await answered(lambda: lease.peek(timeout_s=S)))[0]


async def own(lease, token="ta"):
    await answered(lambda: lease.claim("n-" + token, floor=0, ttl_ms=5000, timeout_s=S))
    view = await peek(lease)
    request = AcquireRequest(token, META, view.version, str(view.inc), 0, 5000)
    return (await answered(lambda: lease.acquire(request, timeout_s=S)))[0]


def renewing(lease, token, taken):
    """A call for `answered`: every attempt has a higher seq."""
    seqs = itertools.count(1)

    def renew():
        request = RenewRequest(token, META, taken.epoch, next(seqs), taken.life, 5000)
        return lease.renew(request, timeout_s=S)

    return renew


def test_an_unknown_service_is_told_by_name(group):
    async def scenario():
        async with lease_store(replace(group.address, service="nobody")) as lease:
            with pytest.raises(StoreUnreachable, match=r"(?i)no such .*name"):
                await lease.peek(timeout_s=S)

    asyncio.run(scenario())


def test_how_long_the_sentinels_wait_is_judged_with_the_server(group):
    """They wait 300 ms here."""

    async def scenario():
        connection = connection_to(group.address, LOGIN, quorum=(quorum := Quorum()))
        try:
            return (await answered(lambda: inspect_server(connection, quorum=quorum, timeout_s=S)))[0]
        finally:
            await connection.aclose()

    sentences = asyncio.run(scenario())
    assert [one for one in sentences if "down after 300 ms" in one and "1000 to 1500" in one]


def test_three_sentinels_for_two_nodes_do_not_make_a_majority_enough(group):
    """An extra Sentinel could promote on a side of a partition where only a minority of the nodes is."""
    quorum = Quorum()

    async def scenario():
        async with lease_store(group.address, quorum) as lease:
            await own(lease, "t3")

    asyncio.run(scenario())
    assert (quorum.guarded, quorum.needed) == (False, 1)


def test_a_demoted_master_is_left_for_the_new_one(group):
    """The operator orders a failover: the open connection leads to a replica, whose READONLY is no answer."""
    old = group.master()

    async def scenario():
        async with lease_store(group.address) as lease:
            assert isinstance(await own(lease, "td"), Acquired)
            with group.sentinels[0].client() as client:
                client.execute_command("SENTINEL", "FAILOVER", "main")
            new = await asyncio.to_thread(group.await_master, other_than=old)
            with old.client() as client:  # as the Sentinels do, ten seconds later
                client.replicaof("127.0.0.1", str(new.port))

            async def peek_at_a_master():
                view = await lease.peek(timeout_s=S)
                if view.role != "master":
                    raise StoreUnreachable("still at the demoted one")
                return view

            view, _ = await answered(peek_at_a_master)
            released, _ = await answered(lambda: lease.release("td", reason="done", timeout_s=S))
            return view, released

    view, released = asyncio.run(scenario())
    assert (view.state, view.owner) == (LeaseState.HELD, "a")
    assert released is True


def test_a_promotion_is_followed_and_what_was_confirmed_is_there(group):
    """The master is killed: the lease goes on under its token at the promoted replica."""
    first, quorum = group.master(), Quorum()

    async def scenario():
        async with lease_store(group.address, quorum) as lease:
            taken = await own(lease, "tp")
            assert isinstance(taken, Acquired)
            first.stop()
            renew = renewing(lease, "tp", taken)
            with pytest.raises(StoreUnreachable):
                await renew()
            quorum.fixed = 0  # the only replica is the master now
            renewed, _ = await answered(renew)
            return taken, renewed, await peek(lease)

    taken, renewed, view = asyncio.run(scenario())
    assert isinstance(renewed, Renewed)
    assert renewed.life != taken.life, "another incarnation, another life"
    assert (view.role, view.owner, view.sure) == ("master", "a", False)


def test_a_sentinel_that_does_not_answer_is_not_waited_for(group):
    group.sentinels[0].stop()

    async def scenario():
        async with lease_store(group.address) as lease:
            return (await peek(lease)).role

    assert asyncio.run(scenario()) == "master"


def test_the_last_master_known_is_used_while_no_sentinel_answers(group):
    async def scenario():
        async with lease_store(group.address) as lease:
            await peek(lease)
            master = group.master()
            for sentinel in group.sentinels:
                sentinel.stop()
            await asyncio.sleep(1.1)
            first = await peek(lease)
            with master.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            again, silences = await answered(lambda: lease.peek(timeout_s=S))
            return first, again, len(silences)

    first, again, silences = asyncio.run(scenario())
    assert first.version == again.version is not None
    assert silences <= 1


def test_a_sentinel_beside_each_of_three_nodes_does(tmp_path):
    quorum = Quorum()

    async def scenario(group):
        async with lease_store(group.address, quorum) as lease:
            taken = await own(lease)
            group.nodes[2].freeze()
            reply, _ = await answered(renewing(lease, "ta", taken))
            group.nodes[2].thaw()
            return taken, reply

    with watched("redis-server", tmp_path, nodes=3, down_after_ms=20_000) as group:
        taken, reply = asyncio.run(scenario(group))
    assert (taken.replicas, quorum.guarded, quorum.needed) == (2, True, 1)
    assert isinstance(reply, Renewed)
