"""WAIT: acquire, renew and publish count only when enough replicas have them (cluster.md section 2)."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from narwhal.errors import StoreUnreachable
from narwhal.model.handoff import EntryKind, LogPosition
from narwhal.model.lease import Acquired, LeaseState, OwnerMeta, Published, Renewed, TopIs
from narwhal.model.store_call import AcquireRequest, AppendRequest, PublishRequest, RenewRequest
from narwhal.store.quorum import Quorum

A = OwnerMeta("a", "http://a:1")
S = 15.0
FAST = 0.3
SEQS = itertools.count(1)
"""Every attempt of a renewal or a snapshot has a higher seq."""


@pytest.fixture
def quorum():
    return Quorum()


@pytest.fixture
def play(backend, quorum):
    """As the suite's, with a quorum that outlives a scenario: one router that connects again."""

    async def run(scenario):
        stores = backend.open(quorum)
        try:
            return await scenario(stores)
        finally:
            await stores.aclose()

    return lambda scenario: asyncio.run(run(scenario))


@pytest.fixture
def replica(backend):
    with backend.replica() as one:
        yield one


async def request(s, token="ta"):
    """What a candidate sends that has watched long enough."""
    await s.lease.claim("n-" + token, floor=0, ttl_ms=5000, timeout_s=S)
    view = await s.lease.peek(timeout_s=S)
    return AcquireRequest(token, A, view.version, str(view.inc), 0, 5000)


async def own(s, token="ta", timeout_s=S):
    return await s.lease.acquire(await request(s, token), timeout_s=timeout_s)


async def renew(s, taken, timeout_s=S):
    request = RenewRequest("ta", A, taken.epoch, next(SEQS), taken.life, 5000)
    return await s.lease.renew(request, timeout_s=timeout_s)


async def publish(s, taken, timeout_s=S):
    request = PublishRequest("ta", taken.epoch, next(SEQS), LogPosition(taken.epoch, 1), b"{}")
    return await s.handoff.publish(request, timeout_s=timeout_s)


async def unconfirmed(call, told="0 of 1"):
    """The call with a short deadline is told that the replica has not got the write: on a loaded machine
    perhaps after attempts that had no answer at all, but never as done."""
    deadline = time.monotonic() + S
    while time.monotonic() < deadline:
        with pytest.raises(StoreUnreachable) as caught:
            await call(FAST)
        if f"{told} replicas confirmed" in str(caught.value):
            assert caught.value.kind == "NOREPLICAS"
            return
    raise AssertionError(f"no word of the replica: {caught.value}")


def test_a_server_without_replicas_confirms_its_own_writes(play, quorum):
    async def scenario(s):
        taken = await own(s)
        return taken, await renew(s, taken), await publish(s, taken)

    taken, renewed, published = play(scenario)
    assert [type(reply) for reply in (taken, renewed, published)] == [Acquired, Renewed, Published]
    assert (taken.replicas, renewed.replicas, quorum.needed) == (0, 0, 0)


def test_a_replica_in_step_confirms_every_write(play, replica, quorum):
    async def scenario(s):
        taken = await own(s)
        return taken, await renew(s, taken), await publish(s, taken)

    taken, renewed, published = play(scenario)
    assert [type(reply) for reply in (taken, renewed, published)] == [Acquired, Renewed, Published]
    assert (taken.replicas, renewed.replicas, quorum.needed) == (1, 1, 1)


def test_what_no_replica_confirms_has_no_answer_though_it_happened(play, replica):
    async def scenario(s):
        asked = await request(s)
        replica.freeze()
        await unconfirmed(lambda timeout_s: s.lease.acquire(asked, timeout_s=timeout_s))
        view = await s.lease.peek(timeout_s=S)
        await unconfirmed(lambda timeout_s: s.lease.acquire(asked, timeout_s=timeout_s))
        replica.thaw()
        return view, await s.lease.acquire(asked, timeout_s=S)

    view, again = play(scenario)
    assert (view.state, view.version.token) == (LeaseState.HELD, "ta")
    assert again.again


def test_a_repeated_acquire_on_a_new_connection_is_confirmed_anew(play, replica):
    """AGAIN writes nothing, but what it tells of may still be on the master alone."""

    async def first(s):
        asked = await request(s)
        replica.freeze()
        await unconfirmed(lambda timeout_s: s.lease.acquire(asked, timeout_s=timeout_s))
        return asked

    asked = play(first)
    play(lambda s: unconfirmed(lambda timeout_s: s.lease.acquire(asked, timeout_s=timeout_s)))
    replica.thaw()
    assert play(lambda s: s.lease.acquire(asked, timeout_s=S)).again


def test_an_unconfirmed_renewal_and_snapshot_have_no_answer(play, replica):
    async def scenario(s):
        taken = await own(s)
        replica.freeze()
        await unconfirmed(lambda timeout_s: renew(s, taken, timeout_s))
        await unconfirmed(lambda timeout_s: publish(s, taken, timeout_s))
        replica.thaw()
        return await renew(s, taken), await publish(s, taken)

    assert [type(reply) for reply in play(scenario)] == [Renewed, Published]


def test_a_log_entry_waits_for_replicas_only_if_asked_to(play, replica):
    async def scenario(s):
        taken = await own(s)
        replica.freeze()
        at = LogPosition(taken.epoch, 2)
        durable = AppendRequest("ta", at, EntryKind.DELTA, {"x": 1}, confirmed=True)
        await unconfirmed(lambda timeout_s: s.handoff.append(durable, timeout_s=timeout_s))
        await unconfirmed(lambda timeout_s: s.handoff.append(durable, timeout_s=timeout_s))
        after = LogPosition(taken.epoch, 3)
        plain = await s.handoff.append(AppendRequest("ta", after, EntryKind.DELTA, {"x": 2}), timeout_s=S)
        replica.thaw()
        return at, plain, await s.handoff.append(durable, timeout_s=S)

    at, plain, again = play(scenario)
    assert plain.id == f"{at.epoch}-3"
    assert again == TopIs(f"{at.epoch}-3"), "a repeated entry was answered, and confirmed with that"


def test_losing_is_answered_without_waiting_for_anybody(play, replica):
    async def scenario(s):
        taken = await own(s)
        stale = await request(s, "tb")
        old = RenewRequest("ta", A, taken.epoch, next(SEQS), taken.life, 5000)
        await renew(s, taken)
        replica.freeze()
        return await s.lease.acquire(stale, timeout_s=S), await s.lease.renew(old, timeout_s=S)

    held, stale = play(scenario)
    assert (held.owner, type(stale).__name__) == ("a", "Stale")


def test_a_master_that_lost_its_replica_does_not_count_to_zero(play, replica, quorum):
    """Sticky N: an isolated master must not confirm by itself what its replicas never got."""

    async def scenario(s):
        taken = await own(s)
        replica.leave()
        await unconfirmed(lambda timeout_s: renew(s, taken, timeout_s))
        await unconfirmed(lambda timeout_s: publish(s, taken, timeout_s))

    play(scenario)
    assert quorum.needed == 1


def test_the_stored_count_binds_a_router_that_never_saw_the_replica(play, replica, backend):
    play(own)
    replica.leave()

    async def scenario():
        stranger = backend.open(Quorum())
        try:
            await unconfirmed(lambda timeout_s: own(stranger, "tb", timeout_s))
            return await stranger.lease.peek(timeout_s=S)
        finally:
            await stranger.aclose()

    view = asyncio.run(scenario())
    assert (view.version.token, view.replicas, view.connected_replicas) == ("tb", 1, 0)


@pytest.mark.parametrize("script", ["renew", "acquire"])
@pytest.mark.parametrize(("stored", "told", "kept"), [(1, 0, 1), (1, 2, 2), (2, 1, 2), (0, 0, 0)])
def test_a_script_keeps_the_greater_of_the_stored_and_the_told_count(backend, script, stored, told, kept):
    """N is fixed to 0, so that nothing is waited for, and who sends has never peeked: the script decides."""
    first, sender = Quorum(0), Quorum(0)
    first.saw(stored)
    sender.saw(told)

    async def scenario():
        owner, stranger = backend.open(first), backend.open(sender)
        try:
            taken = await own(owner)
            wanted = await request(owner, "tb")
            reply = await (
                stranger.lease.acquire(wanted, timeout_s=S) if script == "acquire" else renew(stranger, taken)
            )
            return reply, await owner.lease.peek(timeout_s=S)
        finally:
            await owner.aclose()
            await stranger.aclose()

    reply, view = asyncio.run(scenario())
    assert isinstance(reply, Acquired if script == "acquire" else Renewed)
    assert (reply.replicas, view.replicas) == (kept, kept)


def test_what_a_router_saw_binds_it_where_the_store_forgot(play, replica, backend):
    play(own)
    replica.leave()
    backend.flush()
    play(lambda s: unconfirmed(lambda timeout_s: own(s, "tb", timeout_s)))
    assert play(lambda s: s.lease.peek(timeout_s=S)).replicas == 1


def test_only_a_deposition_lowers_the_count(play, replica, quorum):
    async def scenario(s):
        taken = await own(s)
        replica.leave()
        await unconfirmed(lambda timeout_s: renew(s, taken, timeout_s))
        view = await s.lease.peek(timeout_s=S)
        assert await s.lease.depose(view.version, reason="the replica is gone for good", timeout_s=S)
        assert quorum.needed == 1
        view = await s.lease.peek(timeout_s=S)
        return view, await s.lease.acquire(await request(s, "tb"), timeout_s=S)

    view, taken = play(scenario)
    assert (view.replicas, view.deposed) == (0, True)
    assert (taken.replicas, quorum.needed) == (0, 0)


def test_min_replicas_decides_alone(backend, replica):
    async def scenario(fixed, judge):
        stores = backend.open(Quorum(fixed))
        try:
            return await judge(lambda timeout_s: own(stores, f"t{fixed}", timeout_s))
        finally:
            await stores.aclose()

    assert isinstance(asyncio.run(scenario(1, lambda call: call(S))), Acquired)
    replica.freeze()
    assert isinstance(asyncio.run(scenario(0, lambda call: call(S))), Acquired)
    replica.thaw()
    asyncio.run(scenario(2, lambda call: unconfirmed(call, "1 of 2")))


def test_a_majority_is_enough_only_beside_sentinels():
    quorum = Quorum()
    needed = {}
    for replicas in (1, 2, 3, 5, 4):
        quorum.saw(replicas)
        for quorum.guarded in (False, True):
            needed[replicas, quorum.guarded] = quorum.needed
    assert [needed[replicas, False] for replicas in (1, 2, 3, 5, 4)] == [1, 2, 3, 5, 5]
    assert [needed[replicas, True] for replicas in (1, 2, 3, 5, 4)] == [1, 1, 2, 3, 3]
