"""Keys that hold what no router wrote, on real servers: what counts for nothing, what is told by name, and
that everything goes on when the key is mended. A person with `redis-cli` writes such things."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from narwhal.errors import StoreDamaged
from narwhal.model.handoff import LogPosition
from narwhal.model.lease import MAX_EPOCH, Acquired, OwnerMeta, Published, Reinstated, Renewed
from narwhal.model.request import Counters
from narwhal.model.store_call import AcquireRequest, PublishRequest, RenewRequest, RouterEntry
from narwhal.store.connection import RedisConnection
from narwhal.store.feed import RedisFeed
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner
from tests.support.redis import LOGIN, PATIENT

S = 15.0
META = OwnerMeta("a", "http://a:1")
ODD = ("99999999999999999999", "-7", "abc", "1.5", "1e3", "0x10", " 7", "", "nan")


@pytest.fixture
def redis(server):
    with server.client() as client:
        client.flushall()
        yield client


class Router:
    """One router's stores on one connection, and its lease."""

    def __init__(self, address) -> None:
        connection = RedisConnection(address, LOGIN, waits=PATIENT)
        runner = RedisRunner(connection)
        self.lease, self.handoff = ScriptLeaseStore(runner, "t"), ScriptHandoffStore(runner, "t")
        self.registry = ScriptRegistry(runner, "t")
        self.feed = RedisFeed(RedisConnection(address, LOGIN, waits=PATIENT), "t")
        self.taken = None
        self._seq = 0

    async def acquires(self, token):
        view = await self.lease.peek(timeout_s=S)
        if view.version is None:
            await self.lease.claim("n", floor=0, ttl_ms=5000, timeout_s=S)
            view = await self.lease.peek(timeout_s=S)
        asked = AcquireRequest(token, META, view.version, str(view.inc), 0, 5000)
        self.taken = await self.lease.acquire(asked, timeout_s=S)
        assert isinstance(self.taken, Acquired)
        return self.taken

    async def renews(self, token):
        self._seq += 1
        asked = RenewRequest(token, META, self.taken.epoch, self._seq, self.taken.life, 5000)
        return await self.lease.renew(asked, timeout_s=S)

    async def publishes(self, token):
        self._seq += 1
        epoch = self.taken.epoch
        asked = PublishRequest(token, epoch, self._seq, LogPosition(epoch, 1), b"{}")
        return await self.handoff.publish(asked, timeout_s=S)


def play(server, script):
    @asynccontextmanager
    async def router():
        made = Router(server.address)
        try:
            yield made
        finally:
            await made.lease.aclose()
            await made.feed.aclose()

    async def scenario():
        async with router() as made:
            await script(made)

    asyncio.run(scenario())


def key(name):
    return f"narwhal:{{t}}:{name}"


@pytest.mark.parametrize("odd", [*ODD, None])
def test_an_epoch_key_that_holds_no_epoch_counts_for_nothing_and_is_written_anew(server, redis, odd, caplog):
    async def script(router):
        first = await router.acquires("t1")
        await router.lease.release("t1", reason="yield", timeout_s=S)
        redis.delete(key("epoch"))
        redis.rpush(key("epoch"), "x") if odd is None else redis.set(key("epoch"), odd)
        for _ in range(2):
            view = await router.lease.peek(timeout_s=S)
        assert (view.epoch_key, view.epoch_key_damaged, view.epoch) == (0, True, first.epoch)
        assert sum(key("epoch") in line for line in caplog.messages) == 1, "told once, by its name"
        second = await router.acquires("t2")
        assert second.epoch > first.epoch
        assert int(redis.get(key("epoch"))) == second.epoch
        assert not (await router.lease.peek(timeout_s=S)).epoch_key_damaged

    play(server, script)


def test_a_damaged_epoch_key_does_not_stop_a_marker_or_a_reinstatement(server, redis):
    async def script(router):
        redis.set(key("epoch"), "abc")
        await router.lease.claim("n", floor=5, ttl_ms=5000, timeout_s=S)
        assert redis.get(key("epoch")) == "5"
        await router.acquires("t1")
        redis.flushall()
        redis.rpush(key("epoch"), "x")
        assert isinstance(await router.renews("t1"), Reinstated)
        assert int(redis.get(key("epoch"))) == router.taken.epoch

    play(server, script)


@pytest.mark.parametrize(
    ("field", "odd"),
    [
        *(("epoch", odd) for odd in ODD),
        *(("seq", odd) for odd in ODD),
        *(("ttl_ms", odd) for odd in (*ODD, "86400001")),
        *(("replicas", odd) for odd in ("10001", "abc", "-1")),
        *(("acquired_ms", odd) for odd in ("abc", "-1")),
        ("state", "owned"),
    ],
)
def test_a_lease_that_cannot_be_read_is_told_by_key_and_field_and_mended_by_its_holder(
    server, redis, field, odd
):
    async def script(router):
        await router.acquires("t1")
        redis.hset(key("lease"), field, odd)
        named = "state" if field == "state" else field
        with pytest.raises(StoreDamaged, match=f"{key('lease')}: .*{named}".replace("{t}", r"\{t\}")):
            await router.lease.peek(timeout_s=S)
        if field in ("state", "acquired_ms"):  # the first is told to its holder, the second is for people
            return
        assert isinstance(await router.renews("t1"), Renewed | Reinstated)
        assert (await router.lease.peek(timeout_s=S)).epoch == router.taken.epoch

    play(server, script)


@pytest.mark.parametrize("name", ["lease", "log"])
def test_a_key_of_another_type_is_named_and_taken_up_when_it_is_gone(server, redis, name):
    async def script(router):
        await router.acquires("t1")
        redis.delete(key(name))
        redis.set(key(name), "x")
        with pytest.raises(StoreDamaged, match="see " + key(name).replace("{t}", r"\{t\}") + r"\)"):
            await router.lease.peek(timeout_s=S)
        if name == "log":
            with pytest.raises(StoreDamaged, match=key(name).replace("{t}", r"\{t\}")):
                await router.feed.read(LogPosition(), block_s=0.01)
        redis.delete(key(name))
        assert isinstance(await router.renews("t1"), Renewed | Reinstated)
        assert (await router.lease.peek(timeout_s=S)).epoch == router.taken.epoch

    play(server, script)


def test_a_log_that_ends_above_every_epoch_is_named(server, redis):
    async def script(router):
        await router.acquires("t1")
        redis.xadd(key("log"), {"kind": "x", "body": ""}, id=f"{MAX_EPOCH + 1}-1")
        match = key("log").replace("{t}", r"\{t\}")
        for read in (
            router.lease.peek(timeout_s=S),
            router.publishes("t1"),
            router.handoff.read_log(LogPosition(), timeout_s=S),
        ):
            with pytest.raises(StoreDamaged, match=match):
                await read

    play(server, script)


@pytest.mark.parametrize("field", ["epoch", "seq", "at_ms", "schema_version", "crc32", "upto"])
def test_a_handoff_that_cannot_be_read_is_named_and_written_anew_by_the_owner(server, redis, field):
    async def script(router):
        await router.acquires("t1")
        assert isinstance(await router.publishes("t1"), Published)
        for odd in ODD:
            redis.hset(key("handoff"), field, odd)
            with pytest.raises(StoreDamaged, match=key("handoff").replace("{t}", r"\{t\}")):
                await router.handoff.load(timeout_s=S)
            assert isinstance(await router.publishes("t1"), Published)
            assert (await router.handoff.load(timeout_s=S)).epoch == router.taken.epoch
        redis.hset(key("handoff"), field, "abc")
        await router.lease.release("t1", reason="yield", timeout_s=S)
        assert (await router.acquires("t2")).epoch < MAX_EPOCH

    play(server, script)


@pytest.mark.parametrize(
    "odd", ["abc", "[]", "7", '{"served": "x"}', '{"served": -1}', '{"served": 1e300}', '{"served": true}']
)
def test_counters_that_cannot_be_read_are_left_out_and_those_of_a_living_run_come_back(server, redis, odd):
    async def script(router):
        await router.handoff.flush_totals({"mine": Counters(served=4)}, timeout_s=S)
        redis.hset(key("totals"), mapping={"mine": odd, "gone": odd})
        told = await router.handoff.flush_totals({"mine": Counters(served=5)}, timeout_s=S)
        assert told["mine"].served == 5
        assert "gone" not in told

    play(server, script)


def test_claims_of_another_type_do_not_cost_the_owner_its_lease(server, redis):
    async def script(router):
        await router.acquires("t1")
        redis.set(key("claims"), "x")
        assert isinstance(await router.renews("t1"), Renewed)
        with pytest.raises(StoreDamaged, match="see " + key("claims").replace("{t}", r"\{t\}")):
            await router.registry.put_claim("b", epoch=router.taken.epoch, reason="r", timeout_s=S)
        await router.lease.release("t1", reason="yield", timeout_s=S)
        await router.acquires("t2")
        assert redis.exists(key("claims")) == 0

    play(server, script)


def test_one_odd_entry_of_a_router_hides_no_other(server, redis):
    async def script(router):
        for name in ("a", "b", "c"):
            await router.registry.announce(RouterEntry(name, "r", "standby", f"http://{name}"), timeout_s=S)
        redis.hset(key("router:a"), "seen_ms", "99999999999999999999")
        redis.delete(key("router:b"))
        redis.set(key("router:b"), "x")
        assert [one.router_id for one in await router.registry.routers(timeout_s=S)] == ["c"]

    play(server, script)


@pytest.mark.parametrize("odd", ["routers", "router:b"])
def test_registry_keys_of_another_type_count_for_nothing_and_are_made_anew(server, redis, odd):
    async def script(router):
        entry = RouterEntry("b", "run-b", "standby", "http://b:1")
        for write in (lambda: redis.set(key(odd), "x"), lambda: redis.rpush(key(odd), "x")):
            redis.delete(key("routers"), key("router:b"))
            write()
            assert await router.registry.routers(timeout_s=S) == []
            assert await router.registry.entry("b", timeout_s=S) is None
            assert await router.registry.announce(entry, timeout_s=S)
            assert [one.run for one in await router.registry.routers(timeout_s=S)] == ["run-b"]
            assert (await router.registry.entry("b", timeout_s=S)).run == "run-b"
            redis.delete(key(odd))
            write()
            await router.registry.withdraw("b", "run-b", timeout_s=S)
            assert await router.registry.entry("b", timeout_s=S) is None

    play(server, script)


def test_one_router_is_found_by_its_id_where_the_list_has_forgotten_it(server, redis):
    async def script(router):
        entry = RouterEntry("b", "run-b", "standby", "http://b:1")
        await router.registry.announce(entry, timeout_s=S)
        redis.delete(key("routers"))
        assert (await router.registry.entry("b", timeout_s=S)).run == "run-b"
        assert await router.registry.entry("c", timeout_s=S) is None

    play(server, script)
