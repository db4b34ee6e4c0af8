"""Drills with real processes of the engines' own fence: what no lease and no clock of ours can see."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import EngineProcess, RemoteEngine, engine_process
from tests.support.processes import eventually
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process
from tests.support.tcp_gate import tcp_gate

CLUSTER = "simulated"
PROMPT = {"model": "simulated", "prompt": "hello there", "max_tokens": 3}


@dataclass
class Scene:
    redis: RedisServer
    engines: EngineProcess
    folder: Path
    stack: ExitStack

    def router(self, name: str, *options: str, first_engine: RemoteEngine | None = None) -> Router:
        """A router that answers; `first_engine` stands for e0 in its fleet file."""
        first, *others = self.engines.engines
        fleet = fleet_document([first_engine or first, *others], engine={"tokenize": False})
        store = ("--redis-url", f"redis://127.0.0.1:{self.redis.port}", "--router-id", name)
        return self.stack.enter_context(router_process(self.folder / name, fleet, *store, *options))

    def known(self) -> list[int]:
        """The highest epoch that each engine has heard of."""
        return [stats["epochs"].get(CLUSTER, 0) for stats in self.engines.all_stats()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        redis = stack.enter_context(running(on("redis-6.2"), tmp_path))
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        yield Scene(redis, engines, tmp_path, stack)


def epoch(router: Router) -> int:
    return int(router.get("/ready")["epoch"])


@dataclass
class Asked:
    """One request in a thread of its own; `status` and `body` when the answer is there."""

    router: Router
    status: int = 0
    body: Any = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        host, port = self.router.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30.0)
        connection.request(
            "POST", "/v1/completions", json.dumps(PROMPT), {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        self.status, self.body = answer.status, json.loads(answer.read())
        connection.close()

    def answer(self) -> tuple[int, Any]:
        self.thread.join(30.0)
        return self.status, self.body


@contextmanager
def tell(engine: RemoteEngine, value: str) -> Iterator[None]:
    """Somebody of our cluster with this epoch has asked the engine."""
    headers = {"x-narwhal-epoch": value, "x-narwhal-leg": "probe"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(f"{engine.url}/health", headers=headers), timeout=10.0):
        yield


def fenced(router: Router) -> list[str]:
    """Reasons in the journal, which is written a moment behind."""
    return [row["reason"] for row in router.journal() if row.get("change") == "fenced"]


def test_an_owner_whose_epoch_an_engine_calls_stale_goes_on_above_it(scene: Scene) -> None:
    """As after a store that lost its data and its calendar. A restarted engine learns without traffic."""
    router = scene.router("a")
    before = epoch(router)
    eventually(lambda: scene.known() == [before] * 2, what="the engines know the epoch")
    with tell(scene.engines.engines[1], f"{CLUSTER}/{before + 100}"):
        eventually(lambda: router.ready() and epoch(router) == before + 101, what="a higher epoch")
    assert Asked(router).answer()[0] == 200
    why = [f"engine e1 knows epoch {before + 100}"]
    eventually(lambda: fenced(router) == why, what="the journal tells why, once")
    eventually(lambda: scene.known() == [before + 101] * 2, what="the engines know the new epoch")
    scene.engines.engines[0].order("restart", down_s=0.0)
    eventually(lambda: scene.known() == [before + 101] * 2, what="the restarted engine knows it")


def test_another_cluster_on_the_same_engines_is_nobodys_business(scene: Scene) -> None:
    router = scene.router("a")
    before = epoch(router)
    with tell(scene.engines.engines[0], f"other/{before + 1000}"):
        assert Asked(router).answer()[0] == 200
    assert epoch(router) == before


def test_what_a_frozen_owner_still_sends_is_refused_and_what_it_has_begun_is_finished(scene: Scene) -> None:
    """Two requests are in the old owner's hands when it stands still: the prefill of one has begun, that of
    the other is still on the wire. A successor opens. The first one is finished by the old owner through
    its decode leg, of the second one the engine takes nothing."""
    producer = scene.engines.engines[0]
    with tcp_gate("127.0.0.1", producer.port) as door:
        # Without a warden, which would end a router that stands still.
        behind = replace(producer, url=f"http://127.0.0.1:{door.port}")
        owner = scene.router("a", "--no-warden", first_engine=behind)
        standby = scene.router("b", "--standby")
        eventually(lambda: standby.get("/ready").get("ready_to_take") is True, what="standby ready to take")
        first_epoch = epoch(owner)
        producer.order("slow", leg="prefill", seconds=1.0, count=1)
        begun = Asked(owner)
        eventually(lambda: producer.stats()["legs"].get("prefill") == 1, what="the first prefill")
        door.shut()
        waiting = Asked(owner)
        eventually(lambda: owner.state()["resident"]["e0"]["prefill"] == 2, what="the second prefill")
        owner.process.send(signal.SIGSTOP)
        eventually(standby.ready, what="takeover")
        assert epoch(standby) > first_epoch
        eventually(lambda: scene.known() == [epoch(standby)] * 2, what="the engines know the successor")
        door.reopen()
        eventually(lambda: producer.stats()["fenced"].get("prefill") == 1, what="the late prefill is refused")
        owner.process.send(signal.SIGCONT)
        status, body = begun.answer()
        assert (status, body["usage"]["completion_tokens"]) == (200, 3)
        status, body = waiting.answer()
        assert (status, body["error"]["code"]) == (503, "standby")
        eventually(lambda: owner.get("/ready")["reason"] == "standby", what="the old owner stands by")
        assert producer.stats()["legs"]["prefill"] == 1
        assert scene.engines.engines[1].stats()["legs"]["decode"] == 1

        def counted_once() -> bool:
            counters = standby.get("/narwhal/handoff")["counters"]
            return (counters["served"], counters["rejected"], counters["offered"]) == (1, 1, 2)

        eventually(counted_once, what="the late finishers are counted once")
