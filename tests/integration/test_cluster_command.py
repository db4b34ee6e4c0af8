"""`narwhal cluster` against a living cluster: the store's records, one router's document, and what fails."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import engine_process
from tests.support.processes import Process, eventually, python
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process


@dataclass(frozen=True, slots=True)
class Scene:
    redis: RedisServer
    router: Router

    @property
    def store(self) -> str:
        return f"redis://127.0.0.1:{self.redis.port}"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One router `a` of the cluster `simulated`, owning; in the same server another cluster's lease."""
    folder = tmp_path_factory.mktemp("cluster-command")
    with ExitStack() as stack:
        redis = stack.enter_context(running(on("valkey"), folder))
        with redis.client() as client:
            client.hset("narwhal:{other}:lease", "state", "vacant")
        engines = stack.enter_context(engine_process(2, "--prefill", "0"))
        fleet, store = fleet_document(engines.engines), f"redis://127.0.0.1:{redis.port}"
        options = ("--redis-url", store, "--router-id", "a")
        router = stack.enter_context(router_process(folder / "a", fleet, *options))
        yield Scene(redis, router)


def narwhal_cluster(*words: str) -> subprocess.CompletedProcess[str]:
    command = python("narwhal.cli", "cluster", *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_status_tells_owner_routers_and_store_and_never_the_token(scene: Scene) -> None:
    done = narwhal_cluster("status", "--redis-url", scene.store, "--cluster", "simulated")
    assert (done.returncode, done.stderr) == (0, "")
    with scene.redis.client() as client:
        token = str(client.hget("narwhal:{simulated}:lease", "token"))
    assert token not in done.stdout
    for words in ("held", f"a  {scene.router.url}", "active", "append-only NO", "totals of"):
        assert words in done.stdout


def test_status_for_programs_is_the_cluster_document(scene: Scene) -> None:
    words = ("status", "--json", "--redis-url", scene.store, "--cluster", "simulated")
    stored = json.loads(narwhal_cluster(*words).stdout)
    told = json.loads(narwhal_cluster("status", "--json", "--router", scene.router.url).stdout)
    assert stored["schema"] == told["schema"] == "narwhal.cluster"
    assert stored["lease"]["holder"] == told["lease"]["holder"] == scene.router.get("/ready")["holder"]
    assert stored["lease"]["renewed_age_s"] < 5.0
    assert [row["router_id"] for row in stored["routers"]] == ["a"]


def test_the_only_cluster_needs_no_name_and_several_are_listed(scene: Scene) -> None:
    done = narwhal_cluster("status", "--redis-url", scene.store)
    assert done.returncode == 2
    assert "the store holds 2 clusters, name one with --cluster: other, simulated" in done.stderr


def test_an_unknown_cluster_is_told_with_those_that_are_there(scene: Scene) -> None:
    done = narwhal_cluster("status", "--redis-url", scene.store, "--cluster", "simulatd")
    assert done.returncode == 2
    assert "nothing is stored under narwhal:{simulatd}:; the store holds other, simulated" in done.stderr


def test_history_tells_who_acquired_and_who_told_so(scene: Scene) -> None:
    words = ("history", "--json", "--redis-url", scene.store, "--cluster", "simulated")
    rows = json.loads(narwhal_cluster(*words).stdout)
    assert [(row["kind"], row["router_id"]) for row in rows] == [("acquired", "a")]
    assert scene.router.url in rows[0]["told_by"]
    assert "acquired" in narwhal_cluster("history", "--router", scene.router.url).stdout


def test_watch_goes_on_until_ctrl_c(scene: Scene) -> None:
    words = ("cluster", "watch", "--json", "--every", "0.1", "--router", scene.router.url)
    watching = Process(python("narwhal.cli", *words))
    watching.wait_for(lambda lines: len(lines) >= 3)
    watching.send(signal.SIGINT)
    assert watching.ended() == 0
    assert {json.loads(line)["lease"]["router_id"] for line in watching.lines} == {"a"}


def test_watch_for_programs_says_that_nobody_answers_and_asks_again() -> None:
    words = ("cluster", "watch", "--json", "--every", "0.1", "--router", "http://127.0.0.1:1")
    watching = Process(python("narwhal.cli", *words))
    watching.wait_for(lambda lines: len(lines) >= 3)
    watching.send(signal.SIGINT)
    assert watching.ended() == 0
    assert all("no answer: http://127.0.0.1:1 gives no answer" in line for line in watching.lines)


def test_a_store_that_is_away_and_a_wrong_password_are_one_sentence(scene: Scene) -> None:
    away = narwhal_cluster("status", "--redis-url", "redis://127.0.0.1:1", "--cluster", "simulated")
    assert away.returncode == 1
    assert away.stderr.startswith("narwhal cluster status: the store gives no answer: ")
    store = f"redis://narwhal:wrong@127.0.0.1:{scene.redis.port}"
    refused = narwhal_cluster("status", "--redis-url", store, "--cluster", "simulated")
    assert refused.returncode == 2
    assert "the server refuses this user" in refused.stderr and "wrong@" not in refused.stderr
    for done in (away, refused):
        assert len(done.stderr.splitlines()) == 1


def test_a_router_that_is_away_or_no_router_is_one_sentence(scene: Scene) -> None:
    away = narwhal_cluster("status", "--router", "http://127.0.0.1:1")
    assert (away.returncode, len(away.stderr.splitlines())) == (1, 1)
    wrong = narwhal_cluster("status", "--router", f"{scene.router.url}/v1")
    assert wrong.returncode == 1 and "answered 404" in wrong.stderr


def test_a_yield_without_a_standby_is_refused_with_the_routers_reason(scene: Scene) -> None:
    done = narwhal_cluster("yield", "--redis-url", scene.store, "--cluster", "simulated")
    assert done.returncode == 1
    assert f"{scene.router.url} refused (409): " in done.stderr


def test_depose_needs_the_right_holder_and_ends_its_tenure(scene: Scene) -> None:
    words = ("depose", "--redis-url", scene.store, "--cluster", "simulated", "--reason", "a drill")
    before = scene.router.get("/ready")
    nobody = narwhal_cluster(*words)
    assert nobody.returncode == 2 and "nobody is there to be asked" in nobody.stderr
    wrong = narwhal_cluster(*words, "--expected", "z:0000000000000000")
    assert wrong.returncode == 1 and f"the lease is held by {before['holder']}" in wrong.stderr
    stale = narwhal_cluster(*words, "--expected", f"{before['holder']}/0")
    assert stale.returncode == 1
    assert scene.router.get("/ready")["holder"] == before["holder"]
    done = narwhal_cluster(*words, "--expected", before["holder"])
    assert (done.returncode, done.stderr) == (0, "")
    eventually(lambda: not scene.router.ready(), what="the deposed owner stops")
    eventually(lambda: scene.router.ready(), what="it owns again, a standby like any other")
    assert scene.router.get("/ready")["epoch"] > before["epoch"]


def test_the_records_are_read_with_no_router_up(tmp_path: Path) -> None:
    with running(on("valkey"), tmp_path) as redis, redis.client() as client:
        client.hset("narwhal:{gone}:lease", mapping=RELEASED)
        done = narwhal_cluster("status", "--redis-url", f"redis://127.0.0.1:{redis.port}")
        assert done.returncode == 0, done.stderr
        assert "released: clean shutdown" in done.stdout and "no router has announced itself" in done.stdout
        refused = narwhal_cluster("yield", "--redis-url", f"redis://127.0.0.1:{redis.port}")
        assert refused.returncode == 1 and "cluster gone has no owner now" in refused.stderr


RELEASED = {
    "state": "released",
    "token": "0" * 32,
    "seq": "3",
    "epoch": "9",
    "ttl_ms": "5000",
    "owner": "z",
    "url": "http://z:1",
    "reason": "clean shutdown",
    "renewed_ms": "1700000000000",
    "acquired_ms": "1700000000000",
}
