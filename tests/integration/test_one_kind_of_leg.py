"""Engines on which one kind of leg always fails, while their health checks or their other legs go well."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tests.integration.test_suspects import ask, fleet_of, kinds, routed
from tests.support.engines import engine_process
from tests.support.processes import eventually
from tests.support.router import router_process

LOST_AT_MOST = 12
"""`eject_after` and what four clients send before its probes are answered."""
RESET = {"fault": "rst", "after": 0}
FAULTS = [{"fault": "status", "status": 500}, {"fault": "status", "status": 404}, RESET]


@pytest.mark.parametrize("fault", FAULTS, ids=["500", "404", "reset"])
def test_an_only_engine_whose_every_decode_fails_is_out_though_its_prefills_go_well(
    tmp_path: Path, fault: dict[str, object]
) -> None:
    with (
        engine_process(1) as engines,
        router_process(tmp_path / "router", fleet_of(engines)) as router,
    ):
        (engine,) = engines.engines
        for leg in ("decode", "probe"):
            engine.order(**fault, leg=leg)

        numbers = count()

        def is_out() -> bool:
            ask(router, prompt=f"question {next(numbers)}")
            return bool(router.state()["ejected"] == ["e0"])

        eventually(is_out, what="it is out")
        assert "no available engines" in router.get("/ready")["reason"]
        assert ask(router) == [503]
        engine.clear()
        eventually(lambda: router.state()["ejected"] == [], what="it is back")
        assert ask(router, 3) == [200, 200, 200]
        assert kinds(router, "e0").count("ejection") == 1


def test_an_engine_with_both_roles_that_fails_every_decode_is_out_though_it_prefills_well(
    tmp_path: Path,
) -> None:
    """Of its own KV and of others': the only engine for prefills is gone, the two that are left do both."""
    with engine_process(3) as engines:
        fleet = fleet_of(engines)
        fleet["controller"]["advisory"] = True
        fleet["serving"]["max_attempts"] = 1
        with router_process(tmp_path / "router", fleet) as router:
            engines.engines[0].order("refuse")
            eventually(lambda: ask(router) and router.state()["ejected"] == ["e0"], what="e0 is out")
            for leg in ("decode", "probe"):
                engines.engines[2].order("status", leg=leg, status=500)
            with ThreadPoolExecutor(4) as pool:
                lost = [
                    one
                    for some in pool.map(lambda _: ask(router, 10), range(12))
                    for one in some
                    if one != 200
                ]
            eventually(lambda: router.state()["ejected"] == ["e0", "e2"], what="e2 is out")
            assert len(lost) <= LOST_AT_MOST


def test_health_checks_do_not_keep_in_an_engine_that_resets_every_leg(tmp_path: Path) -> None:
    """One request between two sweeps: each of them ends the streak of lost connections."""
    with routed(tmp_path / "router", liveness_every=1) as (router, engines):
        suspect = engines.engines[3]
        for leg in ("decode", "probe"):
            suspect.order(**RESET, leg=leg)

        def is_out() -> bool:
            ask(router)
            return bool(router.state()["ejected"] == ["e3"])

        eventually(is_out, what="it is out")
        suspect.clear()
        eventually(lambda: router.state()["ejected"] == [], what="it is back")
