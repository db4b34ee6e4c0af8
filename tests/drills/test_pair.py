"""Drills with real processes: a router pair on a real Redis, probed and used from outside (cluster.md 9).

The rules are judged by independent probers and by the clients' own books, never by what the routers say of
themselves.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.bookkeepers import crowd
from tests.support.engines import EngineProcess, engine_process
from tests.support.prober import overlaps, probing
from tests.support.processes import eventually
from tests.support.redis import RedisServer, running
from tests.support.router import Router, fleet_document, router_process
from tests.support.tcp_gate import TcpGate, tcp_gate

TTL_S = 5.0
SETTLE_S = 1.0


@dataclass
class Stage:
    """One Redis, two engines, routers by name."""

    redis: RedisServer
    engines: EngineProcess
    folder: Path
    stack: ExitStack
    routers: dict[str, Router] = field(default_factory=dict)
    lives: int = 0

    def router(self, name: str, *options: str, port: int = 0, module: str = "narwhal.cli.serve") -> Router:
        """A router that answers; `port` of the store's door that it uses (0: the store's own)."""
        store = f"redis://127.0.0.1:{port or self.redis.port}"
        self.lives += 1
        process = router_process(
            self.folder / f"{name}-{self.lives}",
            fleet_document(self.engines.engines),
            *("--redis-url", store, "--router-id", name, *options),
            module=module,
        )
        self.routers[name] = self.stack.enter_context(process)
        return self.routers[name]

    def pair(self, *options: str) -> tuple[Router, Router]:
        """An owner and its standby, both warm."""
        owner, standby = self.router("a", *options), self.router("b", "--standby", *options)
        eventually(lambda: standby.get("/ready").get("ready_to_take") is True, what="standby ready to take")
        return owner, standby


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        redis = stack.enter_context(running("redis-server", folder))
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        yield Stage(redis, engines, folder, stack)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def epoch(router: Router) -> int:
    return int(router.get("/ready")["epoch"])


def served(router: Router) -> int:
    document: dict[str, Any] = router.get("/narwhal/handoff")
    return int(document["counters"]["served"])


# --- the drills --------------------------------------------------------------------------------------


def test_kill_9_of_an_owner_without_a_warden(scene: Stage) -> None:
    """As with a lost host: no two owners at any instant, the standby owns within the TTL, and of the counts
    at most those of the last flush are lost, none is made up."""
    owner, standby = scene.pair("--no-warden")
    assert owner.pid == owner.process.pid
    before = epoch(owner)
    with probing(owner.url, standby.url) as probers, crowd([owner.url, standby.url]) as clients:
        time.sleep(2.0)
        died = time.monotonic()
        owner.process.kill()
        eventually(standby.ready, what="takeover")
        took_s = time.monotonic() - died
        time.sleep(SETTLE_S)
    assert overlaps(probers) == []
    assert all(prober.yeses for prober in probers)
    assert took_s > TTL_S - 2.0, f"after {took_s} s the old owner might still have served"
    assert epoch(standby) > before
    late = clients.served(until=died) - clients.served(until=died - 0.1)
    eventually(lambda: served(standby) >= clients.served() - late, what="the counters")
    assert served(standby) <= clients.served() + len(clients.failed)
    assert len(clients.failed) <= 4, clients.failed


def test_a_clean_switch(scene: Stage) -> None:
    """SIGTERM hands over within moments; requests that were under way are answered; counts are exact."""
    owner, standby = scene.pair()
    with probing(owner.url, standby.url) as probers, crowd([owner.url, standby.url]) as clients:
        time.sleep(1.5)
        owner.process.send(signal.SIGTERM)
        eventually(standby.ready, what="handover", within_s=3.0)
        assert owner.process.ended() == 0
        time.sleep(SETTLE_S)
    assert overlaps(probers) == []
    assert clients.failed == []
    eventually(lambda: served(standby) == clients.served(), what="exact counters")


def test_a_frozen_and_an_emptied_store_within_the_deadline_are_not_noticed(scene: Stage) -> None:
    """Redis stands still for 2 s, later it is restarted without its data: same owner, no failed request."""
    owner, standby = scene.pair()
    before = epoch(owner)
    with probing(owner.url, standby.url) as probers, crowd([owner.url]) as clients:
        time.sleep(0.5)
        scene.redis.freeze()
        time.sleep(2.0)
        scene.redis.thaw()
        time.sleep(2.5)
        scene.redis.stop()
        scene.redis.start()
        time.sleep(3.0)
    assert overlaps(probers) == []
    assert (clients.failed, clients.refused) == ([], 0)
    assert owner.ready() and epoch(owner) == before
    assert probers[1].yeses == []
    with scene.redis.client() as store:
        keys = {key.rsplit(":", 1)[-1] for key in store.keys("*")}
    assert {"lease", "handoff", "totals", "epoch"} <= keys
    eventually(lambda: served(owner) == clients.served(), what="exact counters")


@contextmanager
def shut_out(scene: Stage, module: str) -> Iterator[tuple[Router, Router, TcpGate]]:
    """An owner behind a door to the store that can be shut, and a standby of `module`."""
    with tcp_gate("127.0.0.1", scene.redis.port) as door:
        owner = scene.router("a", port=door.port)
        standby = scene.router("b", "--standby", module=module)
        eventually(lambda: standby.get("/ready").get("ready_to_take") is True, what="standby ready to take")
        yield owner, standby, door


def test_an_owner_cut_off_from_the_store(scene: Stage) -> None:
    """It stops by its own clock before anybody else may begin, and stands by when the store is back."""
    with shut_out(scene, "narwhal.cli.serve") as (owner, standby, door):
        with probing(owner.url, standby.url) as probers:
            door.shut()
            eventually(standby.ready, what="takeover")
            assert owner.get("/ready")["reason"] == "lease store unavailable"
            door.reopen()
            eventually(lambda: owner.get("/ready")["reason"] == "standby", what="back as standby")
        assert overlaps(probers) == []
        assert epoch(owner) == epoch(standby)


def test_the_probers_notice_a_router_that_does_not_watch_long_enough(scene: Stage) -> None:
    """The same with a standby that breaks one rule: what judges the drills can fail."""
    with shut_out(scene, "tests.support.hasty_router") as (owner, standby, door):
        with probing(owner.url, standby.url) as probers:
            door.shut()
            eventually(standby.ready, what="takeover")
            time.sleep(SETTLE_S)
        assert overlaps(probers) != []
