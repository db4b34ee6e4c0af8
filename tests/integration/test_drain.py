"""Drains and readmissions of single engines, over real sockets: the wired orders, and a whole router.

In the first part passes are run by hand, and simulated engines are restarted and broken as a test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from narwhal.model.maintenance import DrainState, OrderAnswer, OrderOutcome
from narwhal.model.placement import Demand
from tests.support.engines import EngineProcess, call, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.scripted import until
from tests.support.sidecars import contracted_fleet
from tests.support.upkeep_rig import CHECKS, post, rig

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
        own.fleet.accounts.hand_off(reservation, 10, since=own.clock.now())
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


async def test_the_answer_to_a_failed_readmission_is_its_own_while_the_next_one_runs():
    async with rig() as own:
        await own.drain("e1")
        own.disk.ready.clear()
        first = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.BLOCKED, "the first has failed")
        own.order(1, "hang", leg="health")
        second = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.VALIDATING, "the second is looked at")
        own.disk.ready.set()
        told = await first
        assert told.outcome is OrderOutcome.REFUSED
        assert told.error.startswith("e1 stays out: the check process failed (its process is not newer")
        own.stands[1].engine.recover()
        assert (await second).outcome is OrderOutcome.REFUSED


async def test_a_drain_ends_the_validation_under_way_and_whoever_waits_for_it_is_told():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        own.order(1, "hang", leg="health")
        told = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.VALIDATING, "it is looked at")
        assert await own.drain("e1") == OrderAnswer(OrderOutcome.DONE)
        assert own.record("e1").state is DrainState.DRAINING
        answer = await told
        assert answer.outcome is OrderOutcome.REFUSED
        assert answer.error.startswith("e1 stays out: its readmission was interrupted, by a drain")
        own.stands[1].engine.recover()
        await own.ready_to_stop("e1")
        assert (own.record("e1").state, own.serves("e1")) == (DrainState.DRAINED, False)
        own.restarted(1)
        assert await own.readmit("e1") == OrderAnswer(OrderOutcome.DONE)
        assert own.events() == ["drain", "drain", "drained", "readmission"]


async def test_whoever_readmits_after_a_drain_gets_a_validation_of_its_own():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        own.order(1, "hang", leg="health")
        ended = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.VALIDATING, "it is looked at")
        await own.drain("e1")
        own.stands[1].engine.recover()
        own.restarted(1)
        assert await own.readmit("e1") == OrderAnswer(OrderOutcome.DONE)
        await ended
        assert own.serves("e1")


async def test_a_check_that_a_peer_keeps_from_being_made_is_named_with_the_cause():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        for number in (0, 2):
            own.order(number, "status", status=500, leg="probe")
        told = await own.readmit("e1")
        assert told.outcome is OrderOutcome.REFUSED
        assert told.error.startswith("e1 stays out: the check kv_transfer could not be made (e1 -> ")
        assert "status 500" in told.error
        assert told.error.endswith("); readmit it again")
        assert [check.name for check in own.record("e1").checks] == CHECKS[:5]


async def test_an_engine_that_passes_while_the_fleet_is_held_is_not_told_to_be_back():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        own.order(1, "slow", seconds=0.3)
        waiting = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.VALIDATING, "it is looked at")
        own.fleet.upkeep.require_wave("e2 is not as it was accepted")
        answer = await waiting
        assert answer.outcome is OrderOutcome.REFUSED
        assert "e1 stays out with the whole fleet, which needs a wave" in answer.error
        assert not own.serves("e1")


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
            a_wave_ends_no_request_in_its_prefill(router, engines)


def prefilling(router: Router) -> bool:
    return any(legs["prefill"] for legs in router.state()["resident"].values())


def a_wave_ends_no_request_in_its_prefill(router: Router, engines: EngineProcess) -> None:
    for engine in engines.engines:
        engine.order("slow", leg="prefill", seconds=1.0)
    body = {"model": "simulated", "prompt": [1] * 100, "max_tokens": 4}
    with ThreadPoolExecutor(1) as beside:
        answer = beside.submit(call, "POST", f"{router.url}/v1/completions", body)
        eventually(lambda: prefilling(router), what="it is in its prefill")
        assert post(router, "drain", {"wave": True})[0] == 200
        assert answer.result(30.0)["usage"]["completion_tokens"] == 4
    eventually(lambda: router.get("/narwhal/lifecycle")["wave"]["ready_to_stop"], what="all may be stopped")
    assert not any(held["orphaned"] for held in router.state()["kv"].values())


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
