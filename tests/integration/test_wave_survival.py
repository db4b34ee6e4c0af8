"""Waves and holds of the whole fleet outlive routers: killed, yielding, restarted, with the store emptied."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.engines import EngineProcess, RemoteEngine, call, engine_process
from tests.support.processes import eventually
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process
from tests.support.sidecars import contracted_fleet
from tests.support.upkeep_rig import post

WAVE = {"wave": True}
NO_WAVE = {"id": None, "active": False, "ready_to_stop": False}
QUICK = {"monitor_interval_s": 0.2}
PATIENT = {"health_timeout_s": 30.0}
"""What hangs does so until the test has seen it."""
LEASE = ("--lease-ttl", "3", "--lease-renew-interval", "0.3", "--lease-safety-margin", "0.5")


@contextmanager
def member(folder: Path, engines: EngineProcess, store: RedisServer, *options: str) -> Iterator[Router]:
    fleet = fleet_document(engines.engines, controller=QUICK, engine=PATIENT)
    url = f"redis://127.0.0.1:{store.port}"
    with router_process(folder, fleet, "--redis-url", url, *LEASE, ready=False) as router:
        yield router


def lifecycle(router: Router) -> dict[str, Any]:
    document = router.get("/narwhal/lifecycle")
    assert isinstance(document, dict)
    return document


def states(router: Router) -> set[str]:
    return {row["state"] for row in lifecycle(router)["engines"].values()}


def wave(router: Router) -> dict[str, Any]:
    told = lifecycle(router)["wave"]
    assert isinstance(told, dict)
    return told


def owner_of(routers: Sequence[Router]) -> Router:
    found: list[Router] = []

    def owns() -> bool:
        found[:] = [
            one for one in routers if one.process.alive and lifecycle(one)["router"]["controls_fleet"]
        ]
        return len(found) == 1

    eventually(owns, what="one of them owns")
    return found[0]


def completion(router: Router) -> tuple[int, str]:
    """Status and error code of a request."""
    try:
        call("POST", f"{router.url}/v1/completions", {"prompt": "a few words", "max_tokens": 2})
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["code"]
    return 200, ""


def restart(engines: EngineProcess) -> None:
    before = {engine.name: engine.stats()["process_start"] for engine in engines.engines}
    for engine in engines.engines:
        engine.clear()
        engine.order("restart", down_s=0.0)

    def another() -> bool:
        return all(engine.stats()["process_start"] > before[engine.name] for engine in engines.engines)

    eventually(another, what="every engine is another process")


def killed(router: Router) -> None:
    """Its warden gives the lease back, and ends."""
    os.kill(router.pid, signal.SIGKILL)
    router.process.ended()


@dataclass
class Scene:
    """`wave_id`: of the wave that is on."""

    engines: EngineProcess
    store: RedisServer
    threads: ThreadPoolExecutor
    wave_id: str = ""

    @property
    def slow(self) -> RemoteEngine:
        return self.engines.engines[1]

    def killed_during_a_drain(self, first: Router, second: Router, third: Router) -> tuple[Router, Router]:
        """One process is not captured yet. Who owns now, and the other one."""
        self.slow.order("hang", leg="metrics")
        cut_off = self.threads.submit(post_or_gone, first, "drain")
        eventually(lambda: wave(second)["active"] and wave(third)["active"], what="the wave is mirrored")
        self.wave_id = wave(second)["id"]
        assert first.get("/ready")["reason"] == f"whole-wave drain {self.wave_id}"
        assert completion(first) == (503, "standby")
        killed(first)
        assert cut_off.result() != 200
        owner = owner_of((second, third))
        reason = f"whole-wave drain {self.wave_id}"
        eventually(lambda: owner.get("/ready")["reason"] == reason, what="it is held")
        assert owner.get("/ready")["control_ready"]
        self.slow.clear()
        status, body = post(owner, "drain", WAVE)
        assert (status, body["durable"], body["wave"]["id"]) == (200, True, self.wave_id)
        eventually(lambda: bool(wave(owner)["ready_to_stop"]), what="all may be stopped")
        return owner, third if owner is second else second

    def handed_over(self, owner: Router, other: Router) -> None:
        eventually(lambda: other.get("/ready")["ready_to_take"], what="the other one could take over")
        assert post(owner, "yield", {"to": None})[0] == 200
        assert owner_of((owner, other)) is other
        eventually(lambda: bool(wave(other)["ready_to_stop"]), what="looked at anew")
        assert wave(other)["id"] == self.wave_id

    def forgotten_by_the_store(self, owner: Router) -> None:
        self.empty_the_store()
        eventually(lambda: bool(owner.get("/ready")["control_ready"]), what="it goes on")
        assert wave(owner)["id"] == self.wave_id

    def killed_during_a_validation(self, owner: Router, other: Router) -> None:
        self.slow.order("hang", leg="health")
        cut_off = self.threads.submit(post_or_gone, owner, "readmit")
        eventually(lambda: states(other) == {"validating"}, what="the validation is mirrored")
        killed(owner)
        assert cut_off.result() != 200
        assert owner_of((other,)) is other
        assert states(other) == {"blocked"}
        assert other.get("/ready")["reason"] == f"whole-wave recovery {self.wave_id}"
        assert completion(other) == (503, "standby")

    def completed(self, last: Router) -> None:
        """By a router that starts anew."""
        owner_of((last,))
        assert (states(last), wave(last)["id"]) == ({"blocked"}, self.wave_id)
        self.slow.clear()
        status, body = post(last, "readmit", WAVE)
        assert (status, body["error"], body["durable"]) == (200, "", True)
        assert (last.ready(), completion(last), states(last)) == (True, (200, ""), {"active"})
        assert wave(last) == {**NO_WAVE, "readiness_withdrawn": False}
        with self.store.client() as client:
            kept = json.loads(client.hget("narwhal:{simulated}:handoff", "document"))["lifecycle"]
        assert (kept["wave"], kept["records"]) == (None, [])

    def empty_the_store(self) -> None:
        with self.store.client() as client:
            client.flushall()


def test_a_wave_outlives_its_owners_and_the_stores_memory(tmp_path: Path) -> None:
    with (
        engine_process(3) as engines,
        running(on("valkey"), tmp_path / "store") as store,
        ThreadPoolExecutor() as threads,
        member(tmp_path / "a", engines, store) as first,
    ):
        scene = Scene(engines, store, threads)
        eventually(first.ready, what="the first one owns")
        with (
            member(tmp_path / "b", engines, store) as second,
            member(tmp_path / "c", engines, store) as third,
        ):
            owner, other = scene.killed_during_a_drain(first, second, third)
            scene.handed_over(owner, other)
            scene.forgotten_by_the_store(other)
            restart(engines)
            scene.killed_during_a_validation(other, owner)
        # All have ended, and the store forgets again: the file remembers.
        scene.empty_the_store()
        with member(owner.folder, engines, store) as last:
            scene.completed(last)


def test_under_whole_wave_an_ejection_holds_the_fleet_until_a_wave_is_completed(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "controller": QUICK,
        "recovery": {"engine_restart_policy": "whole_wave", "liveness_every": 1},
    }
    with (
        engine_process(3) as engines,
        contracted_fleet(engines.engines, tmp_path / "papers", "--rebind", **sections) as (fleet, _),
    ):
        last = engines.engines[2]
        required = f"whole-wave restart required: {last.name} was ejected"
        with router_process(tmp_path / "router", fleet) as router:
            assert completion(router) == (200, "")
            last.order("refuse")
            eventually(lambda: router.get("/ready")["reason"] == required, what="the whole fleet is held")
            rows = router.get("/narwhal/lifecycle")["engines"]
            assert rows[engines.engines[0].name]["error"] == f"held with the whole fleet: {required}"
            assert completion(router) == (503, "standby")
            assert router.get("/health")["status"] == "maintenance"
            assert wave(router) == {**NO_WAVE, "readiness_withdrawn": True}
            last.clear()
            assert post(router, "drain", {"engines": [last.name]})[0] == 409
            assert post(router, "readmit", WAVE)[0] == 409
        for options in ((), ("--resume",)):
            with router_process(tmp_path / "router", fleet, *options, ready=False) as router:
                assert router.get("/ready")["reason"] == required, options
                if not options:
                    continue
                status, body = post(router, "drain", WAVE)
                assert (status, body["error"]) == (200, "")
                eventually(lambda: bool(wave(router)["ready_to_stop"]), what="all may be stopped")
                restart(engines)
                eventually(lambda: post(router, "readmit", WAVE)[0] == 200, what="the sidecars have followed")
                assert (router.ready(), completion(router)) == (True, (200, ""))
                starts = lifecycle(router)["process_starts"]
                assert starts == {
                    iid: row["new_process_start"] for iid, row in lifecycle(router)["engines"].items()
                }


def post_or_gone(router: Router, path: str) -> int:
    """Status of an order, 0 where the router went before it answered."""
    try:
        return post(router, path, WAVE)[0]
    except OSError:
        return 0
