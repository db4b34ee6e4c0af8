"""Decode drift and floor repair on whole routers in front of simulated engines."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.traffic import traffic
from tests.support.wire import Wire, play

HEALTH = {
    "window_s": 1,
    "drift_band": 2.5,
    "relative_band": 1.5,
    "min_samples": 3,
    "probation_windows": 1,
    "evict_windows": 3,
    "recovery_windows": 1,
}
SLOWER = 8
"""Times as long as before a token of a slow engine takes."""


@contextmanager
def fleet(folder: Path, engines: int, **sections: Any) -> Iterator[tuple[EngineProcess, Router]]:
    """e0 prefills, the others decode."""
    recovery = {"readmit_every": 20, "health": HEALTH, **sections.pop("recovery", {})}
    controller = {"monitor_interval_s": 0.1, **sections.pop("controller", {})}
    with engine_process(engines, "--interval", "0.02", "--prefill", "0.005") as made:
        document = fleet_document(made.engines, recovery=recovery, controller=controller, **sections)
        for row in document["engines"][1:]:
            row["role"] = "decode"
        with router_process(folder, document) as router:
            yield made, router


def events(router: Router, *kinds: str) -> list[dict[str, Any]]:
    return [row for row in router.journal() if row.get("kind") in kinds]


def scored(router: Router, *iids: str) -> bool:
    health = router.state()["health"]
    return all(health.get(iid, {}).get("scored", 0) >= 2 for iid in iids)


def test_an_engine_that_slows_down_is_put_on_probation_then_ejected_and_comes_back_without_its_past(
    tmp_path: Path,
) -> None:
    with fleet(tmp_path, 4) as (engines, router), traffic(router.url, clients=9, max_tokens=25) as clients:
        eventually(lambda: scored(router, "e1", "e2", "e3"), what="every decode engine has a baseline")
        assert router.state()["probation"] == []
        engines.engines[2].order("slow_tokens", leg="decode", factor=SLOWER)
        eventually(lambda: events(router, "probation"), what="probation")
        eventually(lambda: events(router, "ejection"), what="ejection")
        engines.engines[2].clear()
        told = events(router, "probation", "ejection")
        assert {row["iid"] for row in told} == {"e2"}
        assert all("times its healthy one" in row["reason"] for row in told)
        past = router.state()["health"]["e2"]["scored"]
        eventually(lambda: events(router, "readmission"), what="readmission")
        assert router.state()["probation"] == []
        eventually(lambda: router.state()["health"]["e2"]["scored"] > past, what="it is scored anew")
        assert [row["iid"] for row in events(router, "probation", "ejection", "readmission")] == ["e2"] * 3
    assert set(clients.statuses) == {200}, "drift costs no request"


def test_an_engine_that_recovers_on_probation_is_free_of_it(tmp_path: Path) -> None:
    patient = {**HEALTH, "evict_windows": 50}
    with (
        fleet(tmp_path, 4, recovery={"health": patient}) as (engines, router),
        traffic(router.url, clients=9, max_tokens=25),
    ):
        eventually(lambda: scored(router, "e1", "e2", "e3"), what="every decode engine has a baseline")
        engines.engines[2].order("slow_tokens", leg="decode", factor=SLOWER)
        eventually(lambda: router.state()["probation"] == ["e2"], what="probation")
        engines.engines[2].clear()
        eventually(lambda: router.state()["probation"] == [], what="tried again, it is found healthy")
        eventually(lambda: events(router, "probation_ended"), what="the journal tells of it")
        assert {row["iid"] for row in events(router, "probation", "probation_ended", "ejection")} == {"e2"}


def test_all_engines_slower_at_once_are_a_surge_and_nobodys_fault(tmp_path: Path) -> None:
    with fleet(tmp_path, 4) as (engines, router), traffic(router.url, clients=9, max_tokens=25):
        eventually(lambda: scored(router, "e1", "e2", "e3"), what="every decode engine has a baseline")
        for engine in engines.engines[1:]:
            engine.order("slow_tokens", leg="decode", factor=SLOWER)
        before = {iid: one["scored"] for iid, one in router.state()["health"].items()}

        def windows_later() -> bool:
            health = router.state()["health"]
            return all(health[iid]["scored"] >= before[iid] + 6 for iid in ("e1", "e2", "e3"))

        eventually(windows_later, what="six windows of slow tokens")
        assert events(router, "ejection") == []


def test_a_router_that_stood_still_blames_no_engine(tmp_path: Path) -> None:
    with fleet(tmp_path, 3) as (_, router), traffic(router.url, clients=6, max_tokens=25):
        eventually(lambda: scored(router, "e1", "e2"), what="every decode engine has a baseline")
        for _ in range(3):
            os.kill(router.pid, signal.SIGSTOP)
            time.sleep(1.4)
            os.kill(router.pid, signal.SIGCONT)
            time.sleep(0.6)
        assert events(router, "probation", "ejection", "hold") == []


def test_clients_that_do_not_read_put_no_engine_under_suspicion(tmp_path: Path) -> None:
    """Their streams stand still, for as many windows as it takes to eject."""
    body = {"prompt": "x", "max_tokens": 400, "stream": True}

    async def unread() -> None:
        wires = [await Wire.open(router.url) for _ in range(4)]
        for wire in wires:
            await wire.request("POST", "/v1/completions", body=body)
        for wire in wires:
            assert (await wire.head()).status == 200
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5.0)
        assert not router.idle()
        for wire in wires:
            wire.close()

    with fleet(tmp_path, 3) as (engines, router):
        with traffic(router.url, clients=6, max_tokens=25):
            eventually(lambda: scored(router, "e1", "e2"), what="every decode engine has a baseline")
        for engine in engines.engines[1:]:
            engine.order("huge", bytes=1 << 20, leg="decode")
        play(unread(), within_s=60.0)
        assert events(router, "probation", "ejection", "hold") == []


def test_a_role_that_falls_below_its_floor_gets_an_engine_and_serves_on(tmp_path: Path) -> None:
    with fleet(tmp_path, 3, recovery={"eject_after": 1}) as (engines, router):
        engines.engines[0].order("refuse")
        with traffic(router.url, clients=2, max_tokens=5):
            eventually(lambda: events(router, "role_change"), what="a decode engine moves")
        (change,) = events(router, "role_change")
        assert (change["role"], change["rule"]) == ("prefill", "floor")
        assert change["reason"] == "0 eligible prefill engines, the floor is 1"
        state = router.state()
        assert state["pools"]["prefill"] == sorted(["e0", change["iid"]])
        (flip,) = state["flips"]
        assert (flip["decision"], flip["iid"], flip["role"]) == ("move", change["iid"], "prefill")
        assert router.get("/narwhal/handoff")["roles"][change["iid"]] == "prefill"
        with traffic(router.url, clients=1, max_tokens=5) as clients:
            eventually(lambda: len(clients.statuses) >= 5, what="five answers")
        assert set(clients.statuses) == {200}


def test_advisory_records_the_proposal_and_moves_nothing(tmp_path: Path) -> None:
    with fleet(tmp_path, 3, recovery={"eject_after": 1}, controller={"advisory": True}) as (engines, router):
        engines.engines[0].order("refuse")
        with traffic(router.url, clients=2, max_tokens=5):
            eventually(lambda: events(router, "role_proposal"), what="a proposal")
        state = router.state()
        assert state["pools"] == {"prefill": ["e0"], "decode": ["e1", "e2"]}
        assert [flip["decision"] for flip in state["flips"]] == ["propose"]
        assert state["control"]["decision"] == "propose"
