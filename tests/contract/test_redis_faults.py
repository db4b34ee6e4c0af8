"""What real servers do to us: lost scripts, full memory, replicas, loading, rights, silence."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from narwhal.errors import StoreProtocolError, StoreUnreachable
from narwhal.model.handoff import EntryKind, LogPosition
from narwhal.model.lease import Acquired, Appended, LeaseState, NewServer, OwnerMeta, Published, Renewed
from narwhal.model.request import Counters
from narwhal.model.settings import StoreAddress
from narwhal.model.store_call import AcquireRequest, AppendRequest, PublishRequest, RenewRequest, RouterEntry
from narwhal.store.advice import inspect_server
from narwhal.store.connection import DEFAULT_WAITS, Login, RedisConnection
from narwhal.store.feed import RedisFeed
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.quorum import Quorum
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner
from tests.support.redis import LOGIN, PATIENT, USER, RedisServer, acl_password, answered, confirms, running

META = OwnerMeta("a", "http://a:1")
S = 15.0
FAST = 0.3
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture
def empty(server):
    with server.client() as client:
        client.flushall()
        client.script_flush()
    return server


@pytest.fixture
def own_server(request, server, tmp_path):
    """A server of the same kind for this test alone: it will be frozen, filled or promoted."""
    with running(server.kind, tmp_path / "own") as own:
        yield own


@asynccontextmanager
async def stores(address, login=LOGIN, waits=PATIENT):
    """Lease store, handoff store and registry on one connection, which comes last."""
    connection = RedisConnection(address, login, waits=waits)
    runner = RedisRunner(connection)
    try:
        yield (
            *(ScriptLeaseStore(runner, "t"), ScriptHandoffStore(runner, "t"), ScriptRegistry(runner, "t")),
            connection,
        )
    finally:
        await connection.aclose()


async def until(server, holds):
    await asyncio.to_thread(server.wait_until, holds)


async def everything(address, login=LOGIN):
    """Every operation of the store once; gives the replies that must be good."""
    async with stores(address, login) as (lease, handoff, registry, _):
        await lease.claim("n", floor=3, ttl_ms=5000, timeout_s=S)
        view = await lease.peek(timeout_s=S)
        taken = await lease.acquire(
            AcquireRequest("ta", META, view.version, str(view.inc), 0, 5000), timeout_s=S
        )
        epoch = taken.epoch
        delta = AppendRequest("ta", LogPosition(epoch, 2), EntryKind.DELTA, {"x": 1})
        replies = [taken, await handoff.append(delta, timeout_s=S)]
        snapshot = PublishRequest("ta", epoch, 1, LogPosition(epoch, 2), b"{}" * 1000)
        replies.append(await handoff.publish(snapshot, timeout_s=S))
        replies.append(await lease.renew(RenewRequest("ta", META, epoch, 1, taken.life, 5000), timeout_s=S))
        assert (await handoff.load(timeout_s=S)).epoch == epoch
        assert await handoff.flush_totals({"r": Counters(served=1)}, timeout_s=S) == {"r": Counters(served=1)}
        await registry.announce(RouterEntry("a", "r1", "active", "http://a:1"), timeout_s=S)
        assert len(await registry.routers(timeout_s=S)) == 1
        await registry.withdraw("a", "r1", timeout_s=S)
        feed = RedisFeed(RedisConnection(address, login, waits=PATIENT), "t")
        batch = await feed.read(LogPosition(epoch, 1), block_s=0.01)
        await feed.aclose()
        assert [entry.kind for entry in batch.entries] == ["delta", "snapshot"]
        assert await lease.release("ta", reason="done", timeout_s=S) is True
        return replies


async def orders(address):
    """A claim against an owner and its deposition."""
    async with stores(address) as (lease, _, registry, _):
        view = await lease.peek(timeout_s=S)
        asked = AcquireRequest("tb", META, view.version, str(view.inc), 0, 5000)
        taken = await lease.acquire(asked, timeout_s=S)
        claimed = await registry.put_claim("b", epoch=taken.epoch, reason="degraded", timeout_s=S)
        version = (await lease.peek(timeout_s=S)).version
        return claimed, await lease.depose(version, reason="gone for good", timeout_s=S)


def all_good(replies):
    return [type(reply) for reply in replies] == [Acquired, Appended, Published, Renewed]


# --- scripts ---------------------------------------------------------------------------------------


def test_scripts_that_the_server_forgot_are_sent_again(empty):
    async def scenario():
        async with stores(empty.address) as (lease, _, _, _):
            await lease.peek(timeout_s=S)
            with empty.client() as client:
                client.script_flush()
            await lease.peek(timeout_s=S)
            with empty.client() as client:
                return client.info("commandstats")

    stats = asyncio.run(scenario())
    assert stats["cmdstat_eval"]["calls"] >= 2


def test_a_known_script_is_not_sent_again(empty):
    async def scenario():
        async with stores(empty.address) as (lease, _, _, _):
            await lease.peek(timeout_s=S)
            with empty.client() as client:
                client.config_resetstat()
                for _ in range(3):
                    await lease.peek(timeout_s=S)
                return client.info("commandstats")

    stats = asyncio.run(scenario())
    assert stats["cmdstat_evalsha"]["calls"] == 3
    assert "cmdstat_eval" not in stats


def test_every_operation_works_on_a_full_server(empty):
    with empty.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        try:
            assert client.info("memory")["maxmemory"] == 1
            with pytest.raises(Exception, match=r"(?i)OOM|maxmemory"):
                client.set("narwhal:{t}:probe", "x")
            assert all_good(asyncio.run(everything(empty.address)))
            assert asyncio.run(orders(empty.address)) == (True, True)
        finally:
            client.config_set("maxmemory", "0")


def test_an_answer_that_is_none_of_ours_is_a_protocol_error(empty):
    with empty.client() as client:
        client.set("narwhal:{t}:lease", "not a hash")

    async def scenario():
        async with stores(empty.address) as (lease, _, _, _):
            with pytest.raises(StoreProtocolError, match=r"lease_peek: .*WRONGTYPE"):
                await lease.peek(timeout_s=S)

    asyncio.run(scenario())


def test_a_record_that_cannot_be_read_names_the_script(empty):
    with empty.client() as client:
        client.hset("narwhal:{t}:lease", mapping={"state": "owned", "token": "x", "seq": "1"})

    async def scenario():
        async with stores(empty.address) as (lease, _, _, _):
            with pytest.raises(StoreProtocolError, match=r"lease_peek gave an answer that cannot be read"):
                await lease.peek(timeout_s=S)

    asyncio.run(scenario())


def test_the_feed_reads_on_after_the_client_name_is_shown(empty):
    async def scenario():
        async with stores(empty.address, Login("narwhal-a:1", acl_password())) as (lease, _, _, _):
            await lease.peek(timeout_s=S)
            with empty.client() as client:
                return [entry["name"] for entry in client.client_list()]

    assert "narwhal-a:1" in asyncio.run(scenario())


# --- servers that cannot answer now ------------------------------------------------------------------


def test_a_replica_refuses_every_write_and_shows_its_role(empty, own_server):
    with own_server.client() as client:
        client.replicaof("127.0.0.1", str(empty.port))
    own_server.wait_until(lambda client: client.info("replication")["master_link_status"] == "up")
    empty.wait_until(confirms)

    async def scenario():
        async with stores(empty.address) as (lease, _, _, _):
            await lease.claim("n", floor=0, ttl_ms=5000, timeout_s=S)
            master = await lease.peek(timeout_s=S)
        async with stores(own_server.address) as (lease, handoff, _, _):
            view = await lease.peek(timeout_s=S)
            request = AcquireRequest("ta", META, master.version, str(view.inc), 0, 5000)
            snapshot = PublishRequest("ta", 1, 1, LogPosition(), b"{}")
            for refused in (
                lease.acquire(request, timeout_s=S),
                lease.renew(RenewRequest("ta", META, 1, 1, "", 5000), timeout_s=S),
                lease.release("ta", reason="", timeout_s=S),
                handoff.publish(snapshot, timeout_s=S),
                handoff.flush_totals({}, timeout_s=S),
            ):
                with pytest.raises(StoreUnreachable, match="READONLY") as caught:
                    await refused
                assert caught.value.kind == "READONLY"
            return master, view

    master, view = asyncio.run(scenario())
    assert (master.role, view.role) == ("master", "slave")
    assert master.connected_replicas == 1
    assert view.inc.run_id != master.inc.run_id
    assert view.inc.replid == master.inc.replid


def test_a_server_that_loads_its_data_gives_no_answer(own_server):
    """Redis looks at its sockets every 2 MB of the file, and waits 3 ms after each key here."""
    with own_server.client() as client:
        client.config_set("rdbcompression", "no")
        for at in range(400):
            client.set(f"k{at}", b"x" * 40_000)
        client.save()
    own_server.options["key-load-delay"] = "3000"
    own_server.stop()
    own_server.start(wait=False)

    async def scenario():
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            async with stores(own_server.address) as (lease, _, _, _):
                try:
                    await lease.peek(timeout_s=S)
                except StoreUnreachable as error:
                    if error.kind:
                        return error.kind
            await asyncio.sleep(0.01)
        return ""

    assert asyncio.run(scenario()) == "LOADING"


def test_a_refused_connection_is_no_answer(own_server):
    own_server.stop()

    async def scenario():
        async with stores(own_server.address) as (lease, _, _, _):
            with pytest.raises(StoreUnreachable, match=str(own_server.port)):
                await lease.peek(timeout_s=S)

    asyncio.run(scenario())


def test_a_restarted_server_is_reached_by_the_next_call(own_server):
    async def scenario():
        async with stores(own_server.address) as (lease, _, _, _):
            before = await lease.peek(timeout_s=S)
            own_server.restart()
            for _ in range(2):
                try:
                    return before, await lease.peek(timeout_s=S)
                except StoreUnreachable:
                    continue
        raise AssertionError("not reached again")

    before, after = asyncio.run(scenario())
    assert before.inc != after.inc


# --- silence -----------------------------------------------------------------------------------------


def test_a_frozen_server_is_given_up_in_bounded_time_and_its_late_reply_is_never_read(own_server):
    async def scenario():
        async with stores(own_server.address) as (lease, _, _, _):
            await lease.claim("n", floor=0, ttl_ms=5000, timeout_s=S)
            own_server.freeze()
            before = time.monotonic()
            with pytest.raises(StoreUnreachable, match="no answer"):
                await lease.release("nobody", reason="", timeout_s=FAST)
            with pytest.raises(StoreUnreachable):
                await lease.peek(timeout_s=FAST)
            took = time.monotonic() - before
            own_server.thaw()
            view = await lease.peek(timeout_s=S)
            return took, view

    took, view = asyncio.run(scenario())
    assert took < 10
    assert view.state is LeaseState.VACANT


def test_without_an_own_deadline_the_socket_gives_up(own_server):
    async def scenario():
        async with stores(own_server.address, waits=DEFAULT_WAITS) as (lease, _, _, _):
            await answered(lambda: lease.peek(timeout_s=S))
            own_server.freeze()
            try:
                with pytest.raises(StoreUnreachable):
                    await lease.peek(timeout_s=60)
            finally:
                own_server.thaw()

    before = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - before < 20


def test_a_write_that_timed_out_may_still_happen_and_is_told_again(own_server):
    async def scenario():
        async with stores(own_server.address) as (lease, _, _, _):
            await lease.claim("n", floor=0, ttl_ms=5000, timeout_s=S)
            view = await lease.peek(timeout_s=S)
            request = AcquireRequest("ta", META, view.version, str(view.inc), 0, 5000)
            elsewhere = replace(request, token="tx", inc="another")
            assert isinstance(await lease.acquire(elsewhere, timeout_s=S), NewServer)
            own_server.freeze()
            with pytest.raises(StoreUnreachable):
                await lease.acquire(request, timeout_s=FAST)
            own_server.thaw()
            await until(own_server, lambda client: client.hget("narwhal:{t}:lease", "state") == "held")
            return await lease.acquire(request, timeout_s=S)

    assert asyncio.run(scenario()).again


def test_a_cancelled_call_takes_its_connection_with_it(empty):
    async def scenario():
        connection = RedisConnection(empty.open_address, waits=PATIENT)
        first = await connection.command("CLIENT", "ID", timeout_s=S)
        waiting = asyncio.create_task(connection.command("BLPOP", "narwhal:{t}:nothing", 30, timeout_s=60))
        await until(empty, lambda client: int(client.info("clients")["blocked_clients"]) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        second = await connection.command("CLIENT", "ID", timeout_s=S)
        await connection.aclose()
        return first, second

    first, second = asyncio.run(scenario())
    assert first != second


def test_a_call_that_waits_for_its_turn_keeps_its_own_deadline(empty):
    async def scenario():
        connection = RedisConnection(empty.open_address, waits=PATIENT)
        first = asyncio.create_task(connection.command("BLPOP", "narwhal:{t}:nothing", 30, timeout_s=60))
        await until(empty, lambda client: int(client.info("clients")["blocked_clients"]) == 1)
        with pytest.raises(StoreUnreachable, match="no answer"):
            await connection.command("PING", timeout_s=0.05)
        with empty.client() as client:
            client.rpush("narwhal:{t}:nothing", "x")
        reply = await first
        await connection.aclose()
        return reply

    assert asyncio.run(scenario()) == [b"narwhal:{t}:nothing", b"x"]


# --- rights and addresses ----------------------------------------------------------------------------


@pytest.fixture
def guarded(server, tmp_path):
    with running(server.kind, tmp_path / "guarded") as own:
        yield own


def test_the_shipped_acl_permits_every_operation(guarded):
    assert all_good(asyncio.run(everything(guarded.address)))
    with guarded.client() as client:
        assert client.acl_log() == []


def test_the_shipped_acl_permits_nothing_else(guarded):
    async def scenario():
        connection = RedisConnection(guarded.address, LOGIN, waits=PATIENT)
        for words in (
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("GET", "other"),
            ("KEYS", "*"),
            ("CLIENT", "LIST"),
        ):
            with pytest.raises(StoreProtocolError, match="NOPERM"):
                await connection.command(*words, timeout_s=S)
        assert await connection.command("GET", "narwhal:{any}:epoch", timeout_s=S) is None
        await connection.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("login", [Login("n", "wrong"), Login("n")])
def test_a_wrong_or_missing_password_is_told_as_such(guarded, login):
    address = replace(guarded.address, username=USER if login.password else "")
    with guarded.client() as client:
        client.acl_setuser("default", enabled=False)

    async def scenario():
        async with stores(address, login) as (lease, _, _, _):
            with pytest.raises(StoreProtocolError, match="refuses this user"):
                await lease.peek(timeout_s=S)

    asyncio.run(scenario())


def test_a_unix_socket_works_like_a_port(server, tmp_path):
    path = tmp_path / "r.sock"
    with running(server.kind, tmp_path / "unix", unixsocket=str(path)):
        address = StoreAddress(socket_path=str(path), db=3, username=USER)
        assert all_good(asyncio.run(everything(address)))


def test_a_database_number_is_respected(empty):
    assert all_good(asyncio.run(everything(replace(empty.address, db=5))))
    with empty.client() as client:
        assert client.dbsize() == 0


# --- advice ------------------------------------------------------------------------------------------


def advice(server: RedisServer, quorum: Quorum | None = None) -> tuple[str, ...]:
    async def scenario():
        connection = RedisConnection(
            server.address, LOGIN if server.address.username else None, waits=PATIENT
        )
        try:
            return await inspect_server(connection, quorum=quorum or Quorum(), timeout_s=S)
        finally:
            await connection.aclose()

    return asyncio.run(scenario())


def test_a_server_with_the_shipped_configuration_gets_no_warning(server, tmp_path):
    (tmp_path / "shipped").mkdir()
    own = RedisServer(server.kind, tmp_path / "shipped")
    own.options = {}
    text = (CONFIGS / "redis.conf").read_text()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            own.options[name] = value.strip('"')
    try:
        own.start()
        assert advice(own) == ()
    finally:
        own.stop()


def test_risky_settings_are_told_with_the_setting_that_mends_them(own_server):
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    warnings = advice(own_server)
    assert [sentence.rpartition("; set ")[2] for sentence in warnings] == [
        "maxmemory-policy noeviction or a volatile one",
        "appendonly yes",
    ]


def test_a_redis_cluster_is_refused(server, tmp_path):
    with running(server.kind, tmp_path / "cluster", cluster_enabled="yes") as own:
        with pytest.raises(StoreProtocolError, match="Redis Cluster is not supported"):
            advice(own)


async def test_a_cancelled_call_never_returns_whenever_the_cancellation_comes(empty):
    """redis-py waits with asyncio.wait_for, which on Python 3.11 may lose a cancellation."""
    connection = RedisConnection(empty.address, LOGIN, waits=PATIENT)
    try:
        await connection.command("PING", timeout_s=S)
        for turns in range(40):
            call = asyncio.create_task(connection.command("PING", timeout_s=S))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked = call.cancel()
            await asyncio.wait({call})
            assert call.cancelled() == asked, f"cancelled after {turns} turns"
        assert await connection.command("PING", timeout_s=S) == b"PONG"
    finally:
        await connection.aclose()


async def test_a_cancelled_call_that_fails_at_that_moment_ends_cancelled_too(guarded):
    """Else a follower that asks again after errors could never be ended: a wrong password hung a router."""
    connection = RedisConnection(guarded.address, Login("n", "wrong"), waits=PATIENT)
    try:
        for turns in range(60):
            call = asyncio.create_task(connection.command("PING", timeout_s=S))
            for _ in range(turns):
                await asyncio.sleep(0.0001)
            asked = call.cancel()
            await asyncio.wait({call})
            assert call.cancelled() == asked, f"cancelled after {turns} turns: {call.exception()!r}"
    finally:
        await connection.aclose()


# --- WAIT ---------------------------------------------------------------------------------------------


def test_a_server_that_refuses_wait_is_refused_unless_nobody_needs_to_confirm(server, tmp_path):
    """A managed service that hides WAIT, here by its right to rename commands."""
    with running(server.kind, tmp_path / "managed", rename_command="WAIT ") as own:
        with pytest.raises(StoreProtocolError, match=r"refuses WAIT.*--redis-min-replicas 0"):
            advice(own)
        (sentence,) = [text for text in advice(own, Quorum(0)) if "min-replicas 0" in text]
    assert "refuses WAIT" in sentence


def test_no_confirmation_is_said_out_loud_and_too_many_replicas_too(own_server):
    assert any("no replica confirms the lease" in text for text in advice(own_server, Quorum(0)))
    assert any("the store has 0 replicas" in text for text in advice(own_server, Quorum(2)))
    assert not any("min-replicas" in text for text in advice(own_server, Quorum()))


# --- rights that come and go --------------------------------------------------------------------------


def test_rights_that_are_taken_away_are_no_answer_and_heal_when_given_back(guarded):
    """The keeper takes any StoreError as no answer once it has started."""

    async def scenario():
        async with stores(guarded.address) as (lease, _, _, _):
            await lease.claim("n", floor=0, ttl_ms=5000, timeout_s=S)
            view = await lease.peek(timeout_s=S)
            taken = await lease.acquire(
                AcquireRequest("ta", META, view.version, str(view.inc), 0, 5000), timeout_s=S
            )
            with guarded.client() as client:
                client.execute_command("ACL", "SETUSER", "narwhal", "-@all")
            with pytest.raises(StoreProtocolError, match="refuses this user"):
                await lease.renew(RenewRequest("ta", META, taken.epoch, 1, taken.life, 5000), timeout_s=S)
            with guarded.client() as client:
                client.acl_load()
            for seq in (2, 3):
                again = RenewRequest("ta", META, taken.epoch, seq, taken.life, 5000)
                try:
                    return await lease.renew(again, timeout_s=S)
                except StoreUnreachable:  # a reload may end the connections of a user that it changes
                    continue
            raise AssertionError("never answered again")

    assert isinstance(asyncio.run(scenario()), Renewed)
