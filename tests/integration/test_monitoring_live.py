"""The monitor pass of whole routers (failures.md section 1): what hangs, fails and recovers."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from narwhal.model.monitoring import STAGES
from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.traffic import traffic

INTERVAL_S = 0.05
LIMIT = 3


@contextmanager
def fleet(folder: Path, **sections: Any) -> Iterator[tuple[EngineProcess, Router]]:
    controller = {"monitor_interval_s": INTERVAL_S, "monitor_failure_limit": LIMIT}
    with engine_process(2, "--interval", "0.02") as engines:
        document = fleet_document(engines.engines, controller=controller, **sections)
        with router_process(folder, document) as router:
            yield engines, router


def events(router: Router, kind: str) -> list[dict[str, Any]]:
    return [row for row in router.journal() if row.get("kind") == kind]


def passes(router: Router) -> int:
    """So many times the last stage has run."""
    with urllib.request.urlopen(f"{router.url}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    (runs,) = [family for family in families if family.name == "narwhal_monitor_stage_runs"]
    return sum(int(sample.value) for sample in runs.samples if sample.labels["stage"] == STAGES[-1])


@contextmanager
def nowhere_to_write(router: Router) -> Iterator[None]:
    """The checkpoint's folder is away: its writes fail."""
    hidden = router.folder.with_name(f"{router.folder.name}-hidden")
    router.folder.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(router.folder)


def degraded(router: Router) -> bool:
    return str(router.get("/ready")["reason"]).startswith("monitoring degraded")


def test_engines_that_hang_are_no_stage_failure_and_the_passes_go_on(tmp_path: Path) -> None:
    with fleet(tmp_path / "r", recovery={"liveness_every": 1}) as (engines, router):
        for engine in engines.engines:
            engine.order("hang")
        before = passes(router)
        eventually(lambda: passes(router) >= before + 20, what="twenty passes")
        monitoring = router.state()["monitoring"]
        assert (monitoring["failures"], monitoring["consecutive"], monitoring["degraded"]) == (0, 0, False)
        assert set(monitoring["stages"]) == set(STAGES)


def test_the_reason_is_the_first_failure_and_everything_stands_in_the_state(tmp_path: Path) -> None:
    with fleet(tmp_path / "r") as (_, router):
        with nowhere_to_write(router):
            eventually(lambda: degraded(router), what="degraded")
            ready, state = router.get("/ready"), router.state()
            assert ready["reason"] == "monitoring degraded: handoff FileNotFoundError"
            assert ready["control_ready"] is False
            monitoring = state["monitoring"]
            assert monitoring["reason"] == ready["reason"]
            assert monitoring["consecutive"] >= LIMIT
            handoff = monitoring["stages"]["handoff"]
            assert handoff["failures"] >= LIMIT
            assert (handoff["last_class"], handoff["last_at"] > 0) == ("FileNotFoundError", True)
            others = [tally for name, tally in monitoring["stages"].items() if name != "handoff"]
            assert all(tally["failures"] == 0 for tally in others)
            before = passes(router)
            eventually(lambda: passes(router) > before + 3, what="monitoring goes on")
        eventually(router.ready, what="the first clean pass reopens")
        after = router.state()["monitoring"]
        assert (after["consecutive"], after["degraded"], after["reason"]) == (0, False, "")
        assert after["failures"] >= LIMIT, "counters go on"


def test_requests_already_admitted_run_to_completion_and_new_ones_are_refused(tmp_path: Path) -> None:
    with fleet(tmp_path / "r") as (_, router):
        with traffic(router.url, clients=1, max_tokens=150) as admitted:
            eventually(lambda: not router.idle(), what="a stream runs")
            with nowhere_to_write(router):
                eventually(lambda: degraded(router), what="degraded")
                admitted.stop()
                with traffic(router.url, clients=1, max_tokens=2) as refused:
                    eventually(lambda: refused.statuses, what="an answer while degraded")
                eventually(lambda: admitted.statuses, what="the stream's end")
                assert degraded(router), "the stream ended while the router was degraded"
        assert admitted.statuses == [200]
        assert set(refused.statuses) == {503}


def test_streaks_and_counters_start_at_zero_in_a_new_process(tmp_path: Path) -> None:
    with fleet(tmp_path / "first") as (engines, router):
        with nowhere_to_write(router):
            eventually(lambda: degraded(router), what="degraded")
        eventually(router.ready, what="clean again")
        document = fleet_document(engines.engines, controller={"monitor_interval_s": INTERVAL_S})
        assert "monitoring" not in router.get("/narwhal/handoff")
        shutil.copytree(router.folder, tmp_path / "second")
        (tmp_path / "second" / "journal.jsonl").unlink()
        with router_process(tmp_path / "second", document, "--resume") as heir:
            monitoring = heir.state()["monitoring"]
            assert (monitoring["failures"], monitoring["consecutive"]) == (0, 0)


def test_the_journal_tells_of_failures_and_of_both_turns(tmp_path: Path) -> None:
    with fleet(tmp_path / "r") as (_, router):
        with nowhere_to_write(router):
            eventually(lambda: degraded(router), what="degraded")
        eventually(lambda: events(router, "monitoring_recovered"), what="the recovery stands in the journal")
        failures = events(router, "monitoring_stage_failure")
        told = [(row["stage"], row["class"], row["consecutive"]) for row in failures[:LIMIT]]
        assert told == [("handoff", "FileNotFoundError", count) for count in range(1, LIMIT + 1)]
        (turn,) = events(router, "monitoring_degraded")
        assert turn["reason"] == "monitoring degraded: handoff FileNotFoundError"
