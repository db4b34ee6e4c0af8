"""Drills with real processes: what happens to one Redis under a router pair (cluster.md sections 8 and 9).

One pair serves through all of them; after each it must have healed by itself. Each drill prints its figures
(`pytest -s`). Judges are independent probers and the clients' own books.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.bookkeepers import Crowd, crowd
from tests.support.engines import engine_process
from tests.support.fault_proxy import Asked, Fate, FaultProxy, fault_proxy, for_a_while
from tests.support.prober import Prober, overlaps, probing
from tests.support.processes import eventually
from tests.support.redis import ACL_FILE, RedisServer, acl_password, running
from tests.support.router import Router, fleet_document, router_process

TTL_S = 5.0
LEASE = "narwhal:{simulated}:lease"


@dataclass
class Pair:
    """Two routers, each behind a proxy of its own, on one Redis with an append-only file."""

    redis: RedisServer
    routers: dict[str, Router] = field(default_factory=dict)
    doors: dict[str, FaultProxy] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        ready = [name for name, router in self.routers.items() if router.ready()]
        assert len(ready) == 1, ready
        return ready[0]

    def settled(self) -> bool:
        """One owns, the other stands by and is ready to take."""
        told = [router.get("/ready") for router in self.routers.values()]
        standbys = [one for one in told if one["status"] != "ready" and one.get("ready_to_take") is True]
        return len(standbys) == 1 and sum(one["status"] == "ready" for one in told) == 1

    def epoch(self) -> int:
        return max(int(router.get("/ready")["epoch"]) for router in self.routers.values())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("faults")
    with ExitStack() as stack:
        options = {"appendonly": "yes", "appendfsync": "always", "aclfile": str(ACL_FILE)}
        redis = stack.enter_context(running("redis-server", folder, **options))
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        made = Pair(redis)
        for name, extra in (("a", ()), ("b", ("--standby",))):
            made.doors[name] = stack.enter_context(fault_proxy(redis.port))
            url = f"redis://narwhal:{acl_password()}@127.0.0.1:{made.doors[name].port}"
            process = router_process(
                folder / name,
                fleet_document(engines.engines),
                *("--redis-url", url, "--router-id", name, *extra),
            )
            made.routers[name] = stack.enter_context(process)
        yield made


@dataclass
class Drill:
    """One fault under load, and what was seen of it."""

    pair: Pair
    probers: list[Prober]
    clients: Crowd
    owner: str
    epoch: int
    began: float = field(default_factory=time.monotonic)
    healed_s: float = 0.0

    def unnoticed(self) -> None:
        """Same owner, same epoch, no request failed or refused."""
        assert (self.clients.failed, self.clients.refused) == ([], 0)
        assert (self.pair.owner, self.pair.epoch()) == (self.owner, self.epoch)


@contextmanager
def drill(pair: Pair, name: str, *, everybody: bool = False) -> Iterator[Drill]:
    """Load on the owner (or on whoever owns) and probers around a fault; ends when the pair has healed."""
    eventually(pair.settled, what="a settled pair before the drill")
    owner, urls = pair.owner, [router.url for router in pair.routers.values()]
    asked = urls if everybody else [pair.routers[owner].url]
    with probing(*urls) as probers, crowd(asked) as clients:
        seen = Drill(pair, list(probers), clients, owner, pair.epoch())
        yield seen
        fault_s = time.monotonic() - seen.began
        eventually(pair.settled, what=f"{name}: healed by itself")
        seen.healed_s = time.monotonic() - seen.began - fault_s
        time.sleep(0.3)
    assert overlaps(probers) == []
    assert all(prober.asked for prober in probers)
    print(
        f"\n{name}: fault {fault_s:.2f} s, settled {seen.healed_s:.2f} s after it, "
        f"served {clients.served()}, refused {clients.refused}, failed {len(clients.failed)}, "
        f"owner {seen.owner} -> {pair.owner}, epoch {seen.epoch} -> {pair.epoch()}"
    )


def test_frozen_for_two_seconds(pair: Pair) -> None:
    with drill(pair, "SIGSTOP 2 s") as seen:
        pair.redis.freeze()
        time.sleep(2.0)
        pair.redis.thaw()
        time.sleep(1.0)
    seen.unnoticed()


def aof(pair: Pair) -> list[Path]:
    return sorted((pair.redis.directory / "appendonlydir").iterdir())


def test_restarted_empty(pair: Pair) -> None:
    with drill(pair, "restarted empty") as seen:
        pair.redis.stop()
        for path in aof(pair):
            path.unlink()
        pair.redis.start()
        time.sleep(1.5)
    seen.unnoticed()


def test_the_tail_of_the_append_only_file_is_cut(pair: Pair) -> None:
    with drill(pair, "AOF tail cut") as seen:
        pair.redis.stop()
        tail = next(path for path in aof(pair) if path.name.endswith(".incr.aof"))
        with open(tail, "r+b") as file:
            file.truncate(max(0, tail.stat().st_size - 5_000))
        pair.redis.start()
        time.sleep(1.5)
    seen.unnoticed()


def test_flushed_while_owned(pair: Pair) -> None:
    with drill(pair, "FLUSHALL while owned") as seen:
        with pair.redis.client() as client:
            client.flushall()
        time.sleep(1.5)
        with pair.redis.client() as client:
            assert client.hget(LEASE, "owner") == seen.owner
    seen.unnoticed()


def test_the_lease_key_is_deleted_by_hand(pair: Pair) -> None:
    with drill(pair, "DEL of the lease") as seen:
        with pair.redis.client() as client:
            assert client.delete(LEASE) == 1
        time.sleep(1.5)
    seen.unnoticed()


def test_full_memory(pair: Pair) -> None:
    with drill(pair, "maxmemory full 3 s") as seen:
        with pair.redis.client() as client:
            client.config_set("maxmemory", "1")
            time.sleep(1.0)
            before = client.hget("narwhal:{simulated}:handoff", "seq")
            time.sleep(2.0)
            after = client.hget("narwhal:{simulated}:handoff", "seq")
            client.config_set("maxmemory", "0")
    seen.unnoticed()
    assert int(after) > int(before), "snapshots go on"


def test_scripts_forgotten_in_a_loop(pair: Pair) -> None:
    with drill(pair, "SCRIPT FLUSH loop 2 s") as seen:
        with pair.redis.client() as client:
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                client.script_flush()
                time.sleep(0.005)
    seen.unnoticed()


def test_rights_revoked_for_two_seconds(pair: Pair) -> None:
    with drill(pair, "ACL revoked 2 s") as seen:
        with pair.redis.client() as client:
            client.execute_command("ACL", "SETUSER", "narwhal", "-@all")
            time.sleep(2.0)
            client.acl_load()
        time.sleep(1.0)
    seen.unnoticed()


def replies_lost(asked: Asked) -> Fate:
    return Fate.SWALLOW


def test_replies_dropped_after_execution(pair: Pair) -> None:
    """All of the owner's, for 2 s: what it wrote happened, and it hears of none."""
    with drill(pair, "replies dropped 2 s") as seen:
        for_a_while(pair.doors[seen.owner], replies_lost, 2.0)
        time.sleep(1.0)
    seen.unnoticed()


def test_an_owner_that_hears_no_reply_any_more_is_replaced(pair: Pair) -> None:
    """Its renewals arrive and are never answered: it stops by its own clock."""
    with drill(pair, "owner deaf for longer than its deadline", everybody=True) as seen:
        for_a_while(pair.doors[seen.owner], replies_lost, TTL_S + 1.0)
    assert pair.epoch() > seen.epoch


def hand_over(router: Router) -> bool:
    """Orders the owner to yield. False: no standby is known to be ready yet."""
    request = urllib.request.Request(
        f"{router.url}/narwhal/lifecycle/yield",
        data=json.dumps({}).encode(),
        headers={"content-type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status) == 200
    except urllib.error.HTTPError as refused:
        assert refused.code == 409, refused.read()
        return False


def on_sight(what: str, act: Callable[[], None]) -> Callable[[Asked], Fate]:
    """Acts once, right before the first request of that kind is passed on."""
    done: list[bool] = []

    def judge(asked: Asked) -> Fate:
        if asked.what == what and not done:
            done.append(True)
            act()
        return Fate.PASS

    return judge


def test_flushed_in_the_middle_of_a_handover(pair: Pair) -> None:
    """Right before the successor's acquire arrives everything is gone: it finds nothing and watches anew."""

    def flush() -> None:
        with pair.redis.client() as client:
            client.flushall()

    with drill(pair, "FLUSHALL in a handover", everybody=True) as seen:
        successor = next(name for name in pair.routers if name != seen.owner)
        pair.doors[successor].judge = on_sight("lease_acquire", flush)
        eventually(lambda: hand_over(pair.routers[seen.owner]), what="handover")
        eventually(lambda: any(router.ready() for router in pair.routers.values()), what="an owner")
        pair.doors[successor].heal()
    assert pair.epoch() > seen.epoch


def test_frozen_for_ten_seconds(pair: Pair) -> None:
    """Longer than the deadline: nobody owns in between, then exactly one."""
    with drill(pair, "SIGSTOP 10 s", everybody=True) as seen:
        pair.redis.freeze()
        time.sleep(10.0)
        assert not any(router.ready() for router in pair.routers.values())
        pair.redis.thaw()
    assert pair.epoch() > seen.epoch
