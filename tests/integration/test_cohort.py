"""A contracted fleet that lost every engine, in a whole router: it comes back in one change, KV first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.engines import engine_process
from tests.support.processes import eventually
from tests.support.router import Router, router_process
from tests.support.sidecars import contracted_fleet

QUICK: dict[str, Any] = {
    "controller": {"monitor_interval_s": 0.2},
    "recovery": {"liveness_every": 1, "readmit_every": 3},
}


def events(router: Router, *kinds: str) -> list[tuple[str, str]]:
    return [(row["kind"], row.get("iid", "")) for row in router.journal() if row.get("kind") in kinds]


def in_outage(router: Router) -> bool:
    return bool(router.get("/narwhal/handoff")["lifecycle"]["backend_outage"])


def test_after_an_outage_the_members_prove_themselves_round_the_ring_and_return_in_one_change(
    tmp_path: Path,
) -> None:
    with (
        engine_process(3) as engines,
        contracted_fleet(engines.engines, tmp_path / "papers", "--rebind", **QUICK) as (fleet, _),
        router_process(tmp_path / "router", fleet) as router,
    ):
        names = [engine.name for engine in engines.engines]
        for engine in engines.engines:
            engine.order("refuse")
        eventually(lambda: in_outage(router), what="nobody serves")
        assert router.get("/ready")["reason"] == "no available engines"
        for engine in engines.engines:
            engine.clear()
        eventually(router.ready, what="the fleet is back")
        assert not in_outage(router)
        assert router.state()["ejected"] == []
        assert all(engine.stats()["transfers"] >= 1 for engine in engines.engines), (
            "each pulled from the one before"
        )
        eventually(lambda: bool(events(router, "backend_outage_ended")), what="the end is in the journal")
        told = events(router, "readmission_waits", "readmission", "backend_outage", "backend_outage_ended")
        assert told[0] == ("backend_outage", "")
        assert sorted(told[1:4]) == [("readmission_waits", name) for name in names]
        assert told[4:] == [*(("readmission", name) for name in names), ("backend_outage_ended", "")]

        for engine in engines.engines:
            engine.order("refuse")
        eventually(lambda: in_outage(router), what="nobody serves again")
        first, second, third = engines.engines
        second.clear()
        second.order("handoff", variant="missing")
        first.clear()
        third.clear()
        eventually(router.ready, what="those whose KV arrives are back")
        eventually(lambda: router.state()["ejected"] == [second.name], what="the other one is not")
        eventually(
            lambda: "kv_transfer failed" in router.get("/narwhal/lifecycle")["engines"][second.name]["error"],
            what="the check is told",
        )
        second.clear()
        eventually(lambda: router.state()["ejected"] == [], what="it is back when its KV arrives")
