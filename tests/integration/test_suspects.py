"""Engines that fail under a real router: held, ejected, readmitted, and told of wherever people look."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.engines import EngineProcess, call, engine_process
from tests.support.processes import eventually
from tests.support.redis import on, running
from tests.support.router import Router, fleet_document, router_process

LEASE = ("--lease-ttl", "3", "--lease-renew-interval", "0.3", "--lease-safety-margin", "0.5")
TRANSITIONS = {"hold", "hold_ended", "ejection", "readmission"}
RECOVERY = {"eject_after": 3, "readmit_every": 3, "liveness_every": 5, "liveness_misses": 2}


def fleet_of(engines: EngineProcess, **recovery: Any) -> dict[str, Any]:
    """e0 and e1 prefill, e2 and e3 decode; passes ten times a second, two attempts a request."""
    return fleet_document(
        engines.engines,
        controller={"monitor_interval_s": 0.1},
        engine={"health_timeout_s": 1.0, "first_token_timeout_s": 1.0},
        serving={"max_attempts": 2, "retry_base_s": 0.001, "retry_cap_s": 0.01},
        recovery={**RECOVERY, **recovery},
    )


@contextmanager
def routed(folder: Path, **recovery: Any) -> Iterator[tuple[Router, EngineProcess]]:
    with engine_process(4) as engines, router_process(folder, fleet_of(engines, **recovery)) as router:
        yield router, engines


def ask(router: Router, times: int = 1, *, prompt: str = "hello") -> list[int]:
    """Statuses of short completions, one after the other."""
    return [_status(router, prompt) for _ in range(times)]


def _status(router: Router, prompt: str) -> int:
    body = {"model": "simulated", "prompt": prompt, "max_tokens": 2}
    try:
        call("POST", f"{router.url}/v1/completions", body)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def events(router: Router, iid: str) -> list[Mapping[str, Any]]:
    return [row for row in router.journal() if row.get("iid") == iid and "reason" in row]


def kinds(router: Router, iid: str) -> list[str]:
    return [str(row["kind"]) for row in events(router, iid)]


def metric(router: Router, name: str, iid: str, kind: str) -> float:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{router.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    start = f'{name}{{iid="{iid}",kind="{kind}"}} '
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_an_engine_that_errs_is_held_ejected_told_of_and_back_after_its_repair(tmp_path: Path) -> None:
    with routed(tmp_path / "router") as (router, engines):
        for leg in ("decode", "probe"):
            engines.engines[3].order("status", leg=leg, status=500)
        assert set(ask(router, 12)) == {200}, "the second attempt serves"
        eventually(lambda: router.state()["ejected"] == ["e3"], what="e3 is out")
        assert router.get("/health")["available_instances"] == 3
        assert router.ready()
        served = engines.engines[3].stats()["legs"]["decode"]
        assert set(ask(router, 6)) == {200}
        assert engines.engines[3].stats()["legs"]["decode"] == served, "no request goes to it"
        engines.engines[3].clear()
        eventually(lambda: router.state()["ejected"] == [], what="e3 is back")
        state = router.state()
        assert (state["quarantined"], state["holds"], state["breaker"]["failures"]) == ([], {}, {})
        eventually(lambda: "readmission" in kinds(router, "e3"), what="the journal tells of it")
        told = [kind for kind in kinds(router, "e3") if kind in TRANSITIONS]
        assert told == ["hold", "hold_ended", "ejection", "readmission"]
        hold = events(router, "e3")[0]
        assert (hold["hold"], hold["enforced"]) == ("inference", True)
        assert str(hold["reason"]).startswith("3 inference_status failures in a row, last: ")
        for kind in ("hold", "ejection", "readmission"):
            assert metric(router, "narwhal_verdicts_detected_total", "e3", kind) == 1
            assert metric(router, "narwhal_verdicts_enforced_total", "e3", kind) == 1


def test_with_every_engine_gone_the_router_is_not_ready_and_comes_back_by_itself(tmp_path: Path) -> None:
    with routed(tmp_path / "router") as (router, engines):
        for engine in engines.engines:
            engine.order("refuse")
        eventually(lambda: router.state()["ejected"] == ["e0", "e1", "e2", "e3"], what="all are out")
        ready = router.get("/ready")
        assert (ready["status"], ready["reason"]) == ("not_ready", "no available engines")
        assert ready["control_ready"]
        assert router.get("/health")["status"] == "degraded"
        assert ask(router) == [503]
        for engine in engines.engines:
            engine.clear()
        eventually(router.ready, what="it serves again")
        eventually(lambda: router.state()["ejected"] == [], what="all are back")
        assert ask(router) == [200]


def test_a_failed_leg_quarantines_for_its_time(tmp_path: Path) -> None:
    with routed(tmp_path / "router", failure_quarantine_s=600.0, liveness_every=0) as (router, engines):
        engines.engines[2].order("status", leg="decode", status=500, count=1)
        assert set(ask(router, 2)) == {200}
        state = router.state()
        assert state["quarantined"] == ["e2"]
        hold = state["holds"]["e2"]
        assert hold["kind"] == "quarantine"
        assert 0 < hold["remaining_s"] <= 600.0
        assert set(ask(router, 4)) == {200}
        assert engines.engines[2].stats()["legs"]["decode"] == 1


def test_the_next_owner_knows_who_is_out_and_brings_it_back(tmp_path: Path) -> None:
    with engine_process(4) as engines, running(on("redis-6.2"), tmp_path / "redis") as store:
        url = ("--redis-url", f"redis://127.0.0.1:{store.port}", *LEASE)
        fleet = fleet_of(engines)
        with (
            router_process(tmp_path / "first", fleet, *url) as first,
            router_process(tmp_path / "second", fleet, *url, "--standby") as second,
        ):
            eventually(lambda: "mirrored" in second.get("/narwhal/handoff"), what="the standby mirrors")
            engines.engines[3].order("refuse")
            eventually(lambda: ask(first) and first.state()["ejected"] == ["e3"], what="e3 is out")
            eventually(lambda: second.get("/narwhal/handoff")["ejected"] == ["e3"], what="mirrored")
            first.process.stop()
            eventually(second.ready, what="the standby took over")
            assert second.state()["ejected"] == ["e3"]
            assert set(ask(second, 6)) == {200}
            engines.engines[3].clear()
            eventually(lambda: second.state()["ejected"] == [], what="e3 is back")


def test_the_last_engine_of_a_leg_is_probed_and_not_held(tmp_path: Path) -> None:
    with engine_process(2) as engines:
        fleet = fleet_of(engines)
        for row in fleet["engines"]:
            row["pin"] = True
        with router_process(tmp_path / "router", fleet) as router:
            engines.engines[1].order("status", leg="decode", status=500, count=4)
            assert set(ask(router, 2)) == {502}
            eventually(lambda: kinds(router, "e1"), what="the journal tells of it")
            (hold,) = events(router, "e1")
            assert (hold["kind"], hold["enforced"]) == ("hold", False)
            assert (router.state()["holds"], router.ready()) == ({}, True)
            eventually(lambda: not router.state()["breaker"]["failures"], what="its probe was good")
            assert metric(router, "narwhal_verdicts_detected_total", "e1", "hold") == 1
            assert metric(router, "narwhal_verdicts_enforced_total", "e1", "hold") == 0
            assert ask(router) == [200]


def test_the_next_owner_looks_at_once_at_who_is_out_and_not_when_its_turn_comes(tmp_path: Path) -> None:
    with engine_process(4) as engines, running(on("redis-6.2"), tmp_path / "redis") as store:
        url = ("--redis-url", f"redis://127.0.0.1:{store.port}", *LEASE)
        fleet = fleet_of(engines, readmit_every=1_000_000)
        # One look is all there is, however loaded this machine is.
        fleet["engine"] |= {"health_timeout_s": 30.0, "first_token_timeout_s": 30.0}
        with (
            router_process(tmp_path / "first", fleet, *url) as first,
            router_process(tmp_path / "second", fleet, *url, "--standby") as second,
        ):
            eventually(lambda: "mirrored" in second.get("/narwhal/handoff"), what="the standby mirrors")
            engines.engines[3].order("refuse")
            eventually(lambda: ask(first) and first.state()["ejected"] == ["e3"], what="e3 is out")
            eventually(lambda: second.get("/narwhal/handoff")["ejected"] == ["e3"], what="mirrored")
            engines.engines[3].clear()
            first.process.stop()
            eventually(second.ready, what="the standby took over")
            eventually(lambda: second.state()["ejected"] == [], what="it was found well")
            eventually(lambda: kinds(second, "e3") == ["readmission"], what="the journal tells of it")
