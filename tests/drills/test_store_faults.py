"""Drills with real processes: what happens to one Redis under a router pair (cluster.md sections 8 and 9).

One pair serves through all of them; after each it must have healed by itself. Each drill prints its figures
(`pytest -s`). Judges are independent probers and the clients' own books.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import engine_process
from tests.support.fault_proxy import Asked, Fate, fault_proxy, for_a_while
from tests.support.processes import eventually
from tests.support.redis import RedisServer, acl_password, on, running
from tests.support.router import fleet_document
from tests.support.store_drill import Pair, drill, hand_over, router_pair

TTL_S = 5.0
LEASE = "narwhal:{simulated}:lease"


@dataclass
class Stage:
    """One Redis with an append-only file and a pair on it, each router behind a proxy of its own."""

    redis: RedisServer
    pair: Pair


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("faults")
    with ExitStack() as stack:
        options = {"appendonly": "yes", "appendfsync": "always"}
        redis = stack.enter_context(running(on("redis-server"), folder, **options))
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        doors = {name: stack.enter_context(fault_proxy(redis.port)) for name in ("a", "b")}

        def url_of(name: str) -> str:
            return f"redis://narwhal:{acl_password()}@127.0.0.1:{doors[name].port}"

        pair = stack.enter_context(router_pair(folder, fleet_document(engines.engines), url_of))
        pair.doors = doors
        yield Stage(redis, pair)


def aof(stage: Stage) -> list[Path]:
    """Its append-only files, the one that grows last: one file on 6.2, a folder since 7.0."""
    folder = stage.redis.directory / "appendonlydir"
    if not folder.exists():
        return [stage.redis.directory / "appendonly.aof"]
    return sorted(folder.iterdir(), key=lambda path: path.name.endswith(".incr.aof"))


def test_restarted_empty(stage: Stage) -> None:
    with drill(stage.pair, "restarted empty") as seen:
        stage.redis.stop()
        for path in aof(stage):
            path.unlink()
        stage.redis.start()
        time.sleep(1.5)
    seen.unnoticed()


def test_the_tail_of_the_append_only_file_is_cut(stage: Stage) -> None:
    with drill(stage.pair, "AOF tail cut") as seen:
        stage.redis.stop()
        tail = aof(stage)[-1]
        with open(tail, "r+b") as file:
            file.truncate(max(0, tail.stat().st_size - 5_000))
        stage.redis.start()
        time.sleep(1.5)
    seen.unnoticed()


def test_flushed_while_owned(stage: Stage) -> None:
    with drill(stage.pair, "FLUSHALL while owned") as seen:
        with stage.redis.client() as client:
            client.flushall()
        time.sleep(1.5)
        with stage.redis.client() as client:
            assert client.hget(LEASE, "owner") == seen.owner
    seen.unnoticed()


def test_the_lease_key_is_deleted_by_hand(stage: Stage) -> None:
    with drill(stage.pair, "DEL of the lease") as seen:
        with stage.redis.client() as client:
            assert client.delete(LEASE) == 1
        time.sleep(1.5)
    seen.unnoticed()


def test_keys_that_no_router_wrote(stage: Stage) -> None:
    """A person's hand in every key: the owner goes on, what it writes heals by itself, and a handover works
    over what nobody mends."""

    def key(name: str) -> str:
        return f"narwhal:{{simulated}}:{name}"

    with drill(stage.pair, "damaged keys") as seen:
        with stage.redis.client() as client:
            client.hset(LEASE, mapping={"seq": "abc", "epoch": "99999999999999999999", "replicas": "x"})
            client.hset(key("handoff"), mapping={"epoch": "abc", "seq": "-1"})
            client.hset(key("totals"), "nobody", "{")
            for name in ("claims", "epoch"):
                client.delete(key(name))
                client.rpush(key(name), "x")
        time.sleep(2.5)
    seen.unnoticed()
    with drill(stage.pair, "yield over damaged keys", everybody=True) as seen:
        with stage.redis.client() as client:
            client.delete(key("epoch"))
            client.set(key("epoch"), "99999999999999999999")
        time.sleep(0.5)
        eventually(lambda: hand_over(stage.pair.routers[seen.owner]), what="a yield that is accepted")
    assert seen.clients.failed == []
    assert stage.pair.owner != seen.owner
    assert stage.pair.epoch() > seen.epoch
    told = [line for router in stage.pair.routers.values() for line in router.process.lines]
    assert any(key("epoch") in line for line in told), "the key is named"


def test_full_memory(stage: Stage) -> None:
    with drill(stage.pair, "maxmemory full 3 s") as seen:
        with stage.redis.client() as client:
            client.config_set("maxmemory", "1")
            time.sleep(1.0)
            before = client.hget("narwhal:{simulated}:handoff", "seq")
            time.sleep(2.0)
            after = client.hget("narwhal:{simulated}:handoff", "seq")
            client.config_set("maxmemory", "0")
    seen.unnoticed()
    assert int(after) > int(before), "snapshots go on"


def test_scripts_forgotten_in_a_loop(stage: Stage) -> None:
    with drill(stage.pair, "SCRIPT FLUSH loop 2 s") as seen:
        with stage.redis.client() as client:
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                client.script_flush()
                time.sleep(0.005)
    seen.unnoticed()


def test_rights_revoked_for_two_seconds(stage: Stage) -> None:
    with drill(stage.pair, "ACL revoked 2 s") as seen:
        with stage.redis.client() as client:
            client.execute_command("ACL", "SETUSER", "narwhal", "-@all")
            time.sleep(2.0)
            client.acl_load()
        time.sleep(1.0)
    seen.unnoticed()


def replies_lost(asked: Asked) -> Fate:
    return Fate.SWALLOW


def test_replies_dropped_after_execution(stage: Stage) -> None:
    """All of the owner's, for 2 s: what it wrote happened, and it hears of none."""
    with drill(stage.pair, "replies dropped 2 s") as seen:
        for_a_while(stage.pair.doors[seen.owner], replies_lost, 2.0)
        time.sleep(1.0)
    seen.unnoticed()


def test_error_words_instead_of_answers(stage: Stage) -> None:
    """Whatever the owner asks for 2 s: none of them demotes it."""
    words = itertools.cycle(("MASTERDOWN", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "LOADING"))
    with drill(stage.pair, "error words 2 s") as seen:
        for_a_while(stage.pair.doors[seen.owner], lambda asked: f"-{next(words)} not now\r\n".encode(), 2.0)
        time.sleep(1.0)
    seen.unnoticed()


def test_an_owner_that_hears_no_reply_any_more_is_replaced(stage: Stage) -> None:
    """Its renewals arrive and are never answered: it stops by its own clock."""
    with drill(stage.pair, "owner deaf for longer than its deadline", everybody=True) as seen:
        for_a_while(stage.pair.doors[seen.owner], replies_lost, TTL_S + 1.0)
    assert stage.pair.epoch() > seen.epoch


def on_sight(what: str, act: Callable[[], None]) -> Callable[[Asked], Fate]:
    """Acts once, right before the first request of that kind is passed on."""
    done: list[bool] = []

    def judge(asked: Asked) -> Fate:
        if asked.what == what and not done:
            done.append(True)
            act()
        return Fate.PASS

    return judge


def test_flushed_in_the_middle_of_a_handover(stage: Stage) -> None:
    """Right before the successor's acquire arrives everything is gone: it finds nothing and watches anew."""

    def flush() -> None:
        with stage.redis.client() as client:
            client.flushall()

    with drill(stage.pair, "FLUSHALL in a handover", everybody=True) as seen:
        successor = next(name for name in stage.pair.routers if name != seen.owner)
        stage.pair.doors[successor].judge = on_sight("lease_acquire", flush)
        eventually(lambda: hand_over(stage.pair.routers[seen.owner]), what="handover")
        eventually(lambda: any(router.ready() for router in stage.pair.routers.values()), what="an owner")
        stage.pair.doors[successor].heal()
    assert stage.pair.epoch() > seen.epoch


def test_frozen_for_ten_seconds(stage: Stage) -> None:
    """Longer than the deadline: nobody owns in between, then exactly one."""
    with drill(stage.pair, "SIGSTOP 10 s", everybody=True) as seen:
        stage.redis.freeze()
        time.sleep(10.0)
        assert not any(router.ready() for router in stage.pair.routers.values())
        stage.redis.thaw()
    assert stage.pair.epoch() > seen.epoch
