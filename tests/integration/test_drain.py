"""Drains and readmissions of single engines, over real sockets: the wired orders, and a whole router.

In the first part passes are run by hand, and simulated engines are restarted and broken as a test says.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from narwhal.cluster.local import LocalGate
from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.engine.control import LeanControl
from narwhal.model.lease import PublishReply
from narwhal.model.maintenance import DrainOrder, DrainRecord, DrainState, OrderAnswer, OrderOutcome
from narwhal.model.placement import Demand
from narwhal.monitor.drains import DrainsStage
from narwhal.monitor.judge import Judge
from narwhal.monitor.maintenance import Maintenance
from narwhal.policy.fleet import Fleet
from narwhal.runtime.probing import Probing, ProbingParts
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.engines import EngineProcess, call, engine_process, engines_here
from tests.support.looking import never
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.scripted import until
from tests.support.serving import specs
from tests.support.settings import engine_settings, fleet_config
from tests.support.sidecars import contracted_fleet
from tests.support.ticking import TickingClock

BUDGET_S = 2.0
CHECKS = ["health", "attestation", "model", "process", "generation", "kv_transfer", "final_health"]


class Disk:
    """A publisher whose disk may be full: implements ports.StatePublisher."""

    def __init__(self) -> None:
        self.full = False
        self.written = 0

    async def snapshot(self) -> PublishReply | None:
        return None

    async def checkpoint(self) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.written += 1


@dataclass
class Rig:
    stands: list[Stand]
    clock: TickingClock
    gate: LocalGate
    fleet: Fleet
    recorder: MemoryRecorder
    maintenance: Maintenance
    stage: DrainsStage
    disk: Disk

    def order(self, number: int, fault: str, **fields: Any) -> None:
        self.stands[number].engine.order(parse_fault({"fault": fault, **fields}))

    def restarted(self, number: int) -> None:
        """Another process answers from now on, as far as anybody can tell."""
        self.order(number, "process_start", shift=50.0)

    async def drain(self, iid: str, deadline_s: float = 300.0) -> OrderAnswer:
        return await self.maintenance.drain(DrainOrder((iid,), deadline_s=deadline_s))

    async def readmit(self, iid: str) -> OrderAnswer:
        return await self.maintenance.readmit(DrainOrder((iid,)))

    def record(self, iid: str) -> DrainRecord:
        return self.fleet.upkeep.drains.record(iid)

    async def ready_to_stop(self, iid: str) -> None:
        for _ in range(200):
            await self.stage.run(self.clock.now())
            if self.record(iid).ready_to_stop:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{iid} never is ready to stop: {self.record(iid)}")

    def serves(self, iid: str) -> bool:
        return self.fleet.eligible(iid, self.clock.now())

    def events(self) -> list[str]:
        return [kind for kind, _ in self.recorder.events]


@asynccontextmanager
async def rig(count: int = 3) -> AsyncIterator[Rig]:
    """Engines e0 (prefill), e1, e2 (decode), unpinned."""
    async with engines_here(count) as stands:
        config = fleet_config(
            *specs(stands, roles="p" + "d" * (count - 1)),
            model="simulated",
            engine=engine_settings(health_timeout_s=BUDGET_S, first_token_timeout_s=BUDGET_S),
        )
        clock, gate, recorder, metrics = TickingClock(), LocalGate(), MemoryRecorder(), RouterMetrics()
        fleet = Fleet(config, {})
        client = LeanClient(config.engines, ClientSettings(16, 1 << 20))
        control = LeanControl(config.engines, connections=16, connect_timeout_s=1.0)
        judge = Judge(fleet, gate=gate, recorder=recorder, metrics=metrics, clock=clock)
        parts = ProbingParts(control, client, fleet, judge=judge, gate=gate, clock=clock, stood_still_s=never)
        probing, disk = Probing(config, parts), Disk()
        maintenance = probing.maintenance(disk)
        stage = DrainsStage(maintenance)
        yield Rig(list(stands), clock, gate, fleet, recorder, maintenance, stage, disk)
        await stage.aclose()
        await probing.aclose()
        await client.aclose()


# --- a drain -----------------------------------------------------------------------------------------


async def test_a_drain_is_out_first_then_captures_the_process_and_is_stored():
    async with rig() as own:
        own.order(1, "hang", leg="metrics")
        waiting = asyncio.create_task(own.drain("e1"))
        await until(lambda: not own.serves("e1"), "it is out")
        assert own.record("e1").captured is None
        waiting.cancel()
        own.stands[1].engine.recover()
        assert await own.drain("e1") == OrderAnswer(OrderOutcome.DONE)
        captured = own.record("e1").captured
        assert captured is not None
        assert captured.process_start == pytest.approx(own.stands[1].engine.process_start)
        assert own.disk.written == 1
        assert own.events() == ["drain"]


async def test_it_is_ready_to_stop_when_our_work_and_the_engines_own_are_over():
    async with rig() as own:
        reservation = own.fleet.reserve_decode(Demand(10, 10), own.clock.now(), producer="e0")
        assert reservation is not None
        iid = reservation.iid
        await own.drain(iid)
        for _ in range(5):
            await own.stage.run(own.clock.now())
            await asyncio.sleep(0.02)
        assert own.record(iid).state is DrainState.DRAINING, "a leg of ours is resident"
        own.fleet.release(reservation, own.clock.now())
        await own.ready_to_stop(iid)
        assert own.record(iid).state is DrainState.DRAINED
        assert own.events() == ["drain", "drained"]


async def test_kv_that_nobody_has_pulled_keeps_a_producer_from_being_stopped():
    async with rig() as own:
        reservation = own.fleet.reserve_prefill(Demand(10, 10), own.clock.now())
        assert reservation is not None
        assert reservation.iid == "e0"
        own.fleet.accounts.hand_off(reservation, 10, now=own.clock.now())
        own.fleet.release(reservation, own.clock.now())
        await own.drain("e0")
        for _ in range(5):
            await own.stage.run(own.clock.now())
            await asyncio.sleep(0.02)
        assert not own.record("e0").ready_to_stop
        own.clock.now_s += 31.0
        own.fleet.tick(own.clock.now())
        await own.ready_to_stop("e0")


async def test_an_engine_whose_process_cannot_be_told_stays_out_and_the_call_is_repeated():
    async with rig() as own:
        own.order(1, "refuse")
        told = await own.drain("e1")
        assert told.outcome is OrderOutcome.UNAVAILABLE
        assert "e1 is out of placement, but which process it is could not be read" in told.error
        assert not own.serves("e1")
        own.stands[1].engine.recover()
        assert (await own.drain("e1")).outcome is OrderOutcome.DONE


async def test_a_deadline_that_passes_leaves_it_out_with_its_work():
    async with rig() as own:
        reservation = own.fleet.reserve_decode(Demand(10, 10), own.clock.now(), producer="e0")
        assert reservation is not None
        await own.drain(reservation.iid, deadline_s=0.01)
        await own.clock.sleep(0.02)
        await own.stage.run(own.clock.now())
        assert own.record(reservation.iid).state is DrainState.DEADLINE_EXCEEDED
        assert own.fleet.resident()[reservation.iid].decode == 1
        assert own.events()[-1] == "drain_deadline"
        own.fleet.release(reservation, own.clock.now())


async def test_a_router_that_does_not_own_orders_nothing():
    async with rig() as own:
        own.gate.shutting_down = True
        for told in (await own.drain("e9"), await own.readmit("e9")):
            assert told.outcome is OrderOutcome.UNAVAILABLE
        assert own.serves("e1")


async def test_what_is_not_stored_is_said_to_be_so():
    async with rig() as own:
        own.disk.full = True
        told = await own.drain("e1")
        assert told.outcome is OrderOutcome.DONE
        assert "the checkpoint could not be written" in told.not_durable


# --- a readmission -----------------------------------------------------------------------------------


async def test_a_restarted_engine_is_back_after_all_seven_checks():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        assert await own.readmit("e1") == OrderAnswer(OrderOutcome.DONE)
        assert own.serves("e1")
        record = own.record("e1")
        assert [check.name for check in record.checks] == CHECKS
        outcomes = {check.name: check.outcome for check in record.checks}
        assert outcomes == {name: "skipped" if name == "attestation" else "passed" for name in CHECKS}
        assert own.stands[1].engine.ledger.pulled >= 1 or own.stands[0].engine.ledger.pulled >= 1
        assert own.events() == ["drain", "readmission"]


async def test_an_engine_that_was_not_restarted_is_blocked_by_the_check_process():
    async with rig() as own:
        await own.drain("e1")
        told = await own.readmit("e1")
        assert told.outcome is OrderOutcome.REFUSED
        assert told.error.startswith("e1 stays out: the check process failed (its process is not newer")
        assert [check.name for check in own.record("e1").checks] == CHECKS[:4]
        assert (own.record("e1").state, own.serves("e1")) == (DrainState.BLOCKED, False)
        own.restarted(1)
        assert (await own.readmit("e1")).outcome is OrderOutcome.DONE


@pytest.mark.parametrize(
    ("fault", "fields", "check"),
    [("refuse", {}, "health"), ("wrong_model", {}, "model"), ("core_stopped", {}, "generation")],
)
async def test_each_broken_check_blocks_it_with_its_name(fault: str, fields: dict[str, Any], check: str):
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        own.order(1, fault, **fields)
        told = await own.readmit("e1")
        assert told.outcome is OrderOutcome.REFUSED
        assert f"the check {check} failed" in told.error
        assert not own.serves("e1")


async def test_two_who_readmit_at_once_share_one_validation_and_one_who_leaves_ends_nothing():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        gone = asyncio.create_task(own.readmit("e1"))
        other = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.VALIDATING, "it is looked at")
        gone.cancel()
        assert (await other).outcome is OrderOutcome.DONE
        assert own.events() == ["drain", "readmission"]


async def test_a_validation_that_outlives_the_ownership_brings_nothing_back():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        own.order(1, "hang", leg="health")
        told = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.VALIDATING, "it is looked at")
        own.gate.shutting_down = True
        own.stands[1].engine.recover()
        assert (await told).outcome is OrderOutcome.UNAVAILABLE
        assert (own.record("e1").state, own.serves("e1")) == (DrainState.BLOCKED, False)


# --- a whole router ----------------------------------------------------------------------------------


def post(router: Router, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    try:
        return 200, call("POST", f"{router.url}/narwhal/lifecycle/{path}", body)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@contextmanager
def routing(folder: Path, engines: EngineProcess) -> Iterator[Router]:
    document = fleet_document(engines.engines, controller={"monitor_interval_s": 0.2})
    with router_process(folder, document) as router:
        eventually(router.ready, what="the router is ready")
        yield router


def told(router: Router) -> set[str]:
    return {str(row.get("event") or row.get("kind")) for row in router.journal()}


def test_an_operator_drains_restarts_and_readmits_an_engine_and_a_drain_outlives_the_router(tmp_path: Path):
    with engine_process(4) as engines:
        last = engines.engines[3]
        with routing(tmp_path, engines) as router:
            status, body = post(router, "drain", {"engines": [last.name]})
            assert (status, body["error"], body["durable"]) == (200, "", True)
            assert router.state()["draining"] == [last.name]

            def stoppable() -> bool:
                return bool(router.get("/narwhal/lifecycle")["engines"][last.name]["ready_to_stop"])

            eventually(stoppable, what="it is ready to stop")
        with routing(tmp_path, engines) as router:
            row = router.get("/narwhal/lifecycle")["engines"][last.name]
            assert (row["state"], row["accepts_new"], row["draining"]) == ("drained", False, True)
            status, body = post(router, "readmit", {"engines": [last.name]})
            assert (status, body["engines"][last.name]["state"]) == (409, "blocked")
            assert "the check process failed" in body["error"]
            last.order("restart", down_s=0.1)
            eventually(
                lambda: post(router, "readmit", {"engines": [last.name]})[0] == 200,
                what="the restarted engine is readmitted",
            )
            row = router.get("/narwhal/lifecycle")["engines"][last.name]
            assert (row["state"], row["accepts_new"]) == ("active", True)
            assert row["new_process_start"] > row["old_process_start"]
            assert router.state()["draining"] == []
            assert router.get("/narwhal/handoff")["lifecycle"]["records"] == []
            eventually(lambda: {"readmission", "readmission_failed"} <= told(router), what="journal rows")
            status, body = post(router, "drain", {"engines": [last.name, "nobody"]})
            assert (status, "nobody is no engine of this fleet" in body["error"]) == (409, True)


def test_a_contracted_engine_is_drained_and_readmitted_by_its_attestation(tmp_path: Path):
    with engine_process(3) as engines:
        last = engines.engines[2]
        with contracted_fleet(engines.engines, tmp_path / "attested", "--rebind") as (document, sidecars):
            attested = sidecars[2]
            with router_process(tmp_path / "router", document) as router:
                eventually(router.ready, what="the router is ready")
                status, body = post(router, "drain", {"engines": [last.name]})
                assert (status, body["error"]) == (200, "")
                (row,) = router.get("/narwhal/handoff")["lifecycle"]["records"]
                assert row["attestation_digest"].startswith("sha256:")
                last.order("restart", down_s=0.1)
                eventually(
                    lambda: post(router, "readmit", {"engines": [last.name]})[0] == 200,
                    what="the sidecar has followed and the engine is readmitted",
                )
                checks = router.get("/narwhal/lifecycle")["engines"][last.name]["checks"]
                assert [check["name"] for check in checks] == CHECKS
                assert checks[1]["outcome"] == "passed"
                assert post(router, "drain", {"engines": [last.name]})[0] == 200
                attested.process.stop()
                status, body = post(router, "readmit", {"engines": [last.name]})
                assert status == 409
                assert "the check attestation failed" in body["error"]
