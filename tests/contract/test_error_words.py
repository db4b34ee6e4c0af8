"""Error replies of a server that cannot do it now: no answer, and the same question is answered later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest
import redis

from narwhal.errors import StoreUnreachable
from narwhal.model.handoff import EntryKind, LogPosition
from narwhal.model.lease import (
    Acquired,
    AcquireReply,
    Appended,
    HeldBy,
    LeaseView,
    OwnerMeta,
    Published,
    Renewed,
)
from narwhal.model.request import Counters
from narwhal.model.store_call import AcquireRequest, AppendRequest, PublishRequest, RenewRequest, RouterEntry
from narwhal.store.connection import RedisConnection
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner
from tests.support.fault_proxy import Fate, FaultProxy, fault_proxy
from tests.support.ports import free_port
from tests.support.redis import LOGIN, PATIENT, RedisServer, answered, running

A = OwnerMeta("a", "http://a:1")
S = 15.0

WORDS = {
    "READONLY": "READONLY You can't write against a read only replica.",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "UNBLOCKED": "UNBLOCKED force unblock from blocking operation, instance state changed",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "BUSY": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MISCONF": "MISCONF Redis is configured to save RDB snapshots, but cannot persist to disk.",
    "CLUSTERDOWN": "CLUSTERDOWN Hash slot not served",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
}
ELSEWHERE = ("READONLY", "MASTERDOWN", "UNBLOCKED")
"""The master is somewhere else: the connection is dropped."""
BY_62 = "ERR Error running script (call to f_6b1bf486c81c): @user_script:41: @user_script: 41: -{}"
BY_70 = "{} script: 6b1bf486c81ceb7edf3c093f4a5b9b2a8c6b2c8e, on @user_script:41."
SHAPES = {"bare": "{}", "wrapped by 6.2": BY_62, "with the script's place": BY_70}


@dataclass
class Store:
    """What one router has, on one connection."""

    lease: ScriptLeaseStore
    handoff: ScriptHandoffStore
    registry: ScriptRegistry

    async def request(self) -> AcquireRequest:
        await self.lease.claim("n", floor=0, ttl_ms=5000, timeout_s=S)
        view = await self.lease.peek(timeout_s=S)
        return AcquireRequest("ta", A, view.version, str(view.inc), 0, 5000)

    async def own(self) -> Acquired:
        taken = await self.lease.acquire(await self.request(), timeout_s=S)
        assert isinstance(taken, Acquired)
        return taken


async def acquire(s: Store, asked: AcquireRequest) -> AcquireReply:
    return await s.lease.acquire(asked, timeout_s=S)


@asynccontextmanager
async def store_at(server: RedisServer, port: int = 0):
    address = replace(server.address, hosts=(("127.0.0.1", port or server.port),))
    runner = RedisRunner(RedisConnection(address, LOGIN, waits=PATIENT))
    try:
        yield Store(
            ScriptLeaseStore(runner, "t"), ScriptHandoffStore(runner, "t"), ScriptRegistry(runner, "t")
        )
    finally:
        await runner.aclose()


@pytest.fixture
def empty(server: RedisServer) -> RedisServer:
    with server.client() as client:
        client.flushall()
    return server


@pytest.fixture
def door(empty: RedisServer) -> Iterator[FaultProxy]:
    with fault_proxy(empty.port) as proxy:
        yield proxy


# --- every word, to every operation ------------------------------------------------------------------


def operations(s: Store, taken: Acquired) -> dict[str, tuple[Callable[[], Awaitable[object]], object]]:
    """Script -> how it is asked, and its good answer or the kind of it. The last ones end the tenure."""
    version, epoch = LogPosition(taken.epoch, 2), taken.epoch
    seqs = iter(range(1, 100))

    async def depose() -> bool:
        return await s.lease.depose((await s.lease.peek(timeout_s=S)).version, reason="x", timeout_s=S)

    return {
        "lease_peek": (lambda: s.lease.peek(timeout_s=S), LeaseView),
        "lease_claim": (lambda: s.lease.claim("n", floor=0, ttl_ms=5000, timeout_s=S), False),
        "lease_renew": (
            lambda: s.lease.renew(RenewRequest("ta", A, epoch, next(seqs), taken.life, 5000), timeout_s=S),
            Renewed,
        ),
        "log_append": (
            lambda: s.handoff.append(AppendRequest("ta", version, EntryKind.DELTA, {"x": 1}), timeout_s=S),
            Appended,
        ),
        "handoff_publish": (
            lambda: s.handoff.publish(PublishRequest("ta", epoch, 1, version, b"{}"), timeout_s=S),
            Published,
        ),
        "totals_flush": (
            lambda: s.handoff.flush_totals({"r": Counters(served=3)}, timeout_s=S),
            {"r": Counters(served=3)},
        ),
        "router_announce": (
            lambda: s.registry.announce(RouterEntry("a", "r1", "active", "http://a:1"), timeout_s=S),
            True,
        ),
        "claim_put": (lambda: s.registry.put_claim("b", epoch=epoch, reason="x", timeout_s=S), True),
        "lease_depose": (depose, True),
        "lease_release": (lambda: s.lease.release("ta", reason="x", timeout_s=S), True),
    }


async def kind_of_refusal(call: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(StoreUnreachable) as caught:
        await call()
    return caught.value.kind


async def refused_once(door: FaultProxy, text: str, call: Callable[[], Awaitable[object]], what: str) -> int:
    """`what` has the error for its answer once; gives how many connections there were until then."""
    (word,) = [word for word, said in WORDS.items() if said in text]
    door.judge = lambda asked: f"-{text}\r\n".encode() if asked.what == what else Fate.PASS
    assert await kind_of_refusal(call) == word
    door.judge = lambda asked: Fate.PASS
    return door.connections


def dropped_or_kept(dropped: bool, word: str) -> bool:
    """LOADING is a connection error to the driver in one shape and none in the others: either will do."""
    return word == "LOADING" or dropped == (word in ELSEWHERE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("word", WORDS)
def test_the_word_is_no_answer_to_any_operation_and_the_next_try_is_answered(door, empty, word, shape):
    text = SHAPES[shape].format(WORDS[word])

    async def scenario():
        async with store_at(empty, door.port) as s:
            asked = await s.request()
            before = await refused_once(door, text, lambda: acquire(s, asked), "lease_acquire")
            taken = await s.lease.acquire(asked, timeout_s=S)
            assert isinstance(taken, Acquired)
            assert dropped_or_kept(door.connections > before, word)
            for what, (call, good) in operations(s, taken).items():
                before = await refused_once(door, text, call, what)
                answer = await call()
                assert isinstance(answer, good) if isinstance(good, type) else answer == good, what
                assert dropped_or_kept(door.connections > before, word), what

    asyncio.run(scenario())


# --- servers that say it themselves ------------------------------------------------------------------


@pytest.fixture
def own(server: RedisServer, tmp_path) -> Iterator[RedisServer]:
    with running(server.kind, tmp_path / "own") as made:
        yield made


def test_noreplicas_of_a_master_that_must_not_write_alone(own):
    """`min-replicas-to-write`: reading goes on, and the same acquire is granted when it may write again."""
    with own.client() as client:

        async def scenario():
            async with store_at(own) as s:
                asked = await s.request()
                client.config_set("min-replicas-to-write", "1")
                refused = await kind_of_refusal(lambda: s.lease.acquire(asked, timeout_s=S))
                view = await s.lease.peek(timeout_s=S)
                client.config_set("min-replicas-to-write", "0")
                return refused, view, await s.lease.acquire(asked, timeout_s=S)

        refused, view, taken = asyncio.run(scenario())
    assert refused == "NOREPLICAS"
    assert view.state == "vacant"
    assert isinstance(taken, Acquired)


def test_masterdown_of_a_replica_that_shows_no_stale_data(own):
    """It is left for the master that is looked for; a master again, it is reached by the next call."""
    with own.client() as client:

        async def scenario():
            async with store_at(own) as s:
                taken = await s.own()
                client.config_set("replica-serve-stale-data", "no")
                client.replicaof("127.0.0.1", str(free_port()))
                refused = await kind_of_refusal(lambda: s.lease.peek(timeout_s=S))
                client.replicaof("NO", "ONE")
                renewal = RenewRequest("ta", A, taken.epoch, 1, taken.life, 5000)
                return refused, await s.lease.renew(renewal, timeout_s=S)

        refused, renewed = asyncio.run(scenario())
    assert refused == "MASTERDOWN"
    assert isinstance(renewed, Renewed)


def test_busy_while_somebody_elses_script_runs(own):
    """The owner is not demoted by it; its next renewal is answered when the script is killed."""
    with own.client() as client:
        client.config_set("lua-time-limit", "10")
        endless = threading.Thread(target=run_endless, args=(own,), daemon=True)

        async def scenario():
            async with store_at(own) as s:
                taken = await s.own()
                endless.start()
                own.wait_until(is_busy)
                renewal = RenewRequest("ta", A, taken.epoch, 1, taken.life, 5000)
                refused = await kind_of_refusal(lambda: s.lease.renew(renewal, timeout_s=S))
                client.execute_command("SCRIPT KILL")
                return refused, (await answered(lambda: s.lease.renew(renewal, timeout_s=S)))[0]

        refused, renewed = asyncio.run(scenario())
        endless.join(S)
    assert refused == "BUSY"
    assert isinstance(renewed, Renewed)


def run_endless(server: RedisServer) -> None:
    with server.client() as client, suppress(redis.ResponseError):
        client.eval("while true do end", 0)


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


def test_clusterdown_of_a_server_without_slots(server, tmp_path):
    """A Redis Cluster is refused at start; one that a server is made part of later gives no answer."""
    with running(server.kind, tmp_path / "cluster", cluster_enabled="yes") as own, own.client() as client:

        async def scenario():
            async with store_at(own) as s:
                refused = await kind_of_refusal(lambda: s.lease.peek(timeout_s=S))
                client.execute_command("CLUSTER ADDSLOTS", *range(16384))
                await asyncio.to_thread(own.wait_until, lambda one: one.set("{t}:probe", "x"))
                return refused, await s.own()

        refused, taken = asyncio.run(scenario())
    assert refused == "CLUSTERDOWN"
    assert isinstance(taken, Acquired)


def test_whoever_was_granted_while_another_met_a_word_keeps_the_lease(door, empty):
    async def scenario():
        async with store_at(empty, door.port) as s, store_at(empty) as rival:
            asked = await s.request()
            await refused_once(door, WORDS["TRYAGAIN"], lambda: acquire(s, asked), "lease_acquire")
            await acquire(rival, replace(asked, token="tb", meta=OwnerMeta("b", "")))
            return await acquire(s, asked)

    assert isinstance(asyncio.run(scenario()), HeldBy)
