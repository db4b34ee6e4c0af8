"""Waves over real sockets: the whole fleet is drained, restarted and comes back together, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.maintenance import DrainOrder, DrainState, OrderAnswer, OrderOutcome
from narwhal.monitor.prober import Prober
from tests.support.scripted import until
from tests.support.settings import handoff_document
from tests.support.upkeep_rig import CHECKS, Rig, rig

IIDS = ("e0", "e1", "e2")
DONE = OrderAnswer(OrderOutcome.DONE)


def states(own: Rig) -> set[DrainState]:
    own.fleet.check_invariants()
    return {own.record(iid).state for iid in own.fleet.engines}


def serving(own: Rig) -> tuple[str, ...]:
    return own.fleet.available(own.clock.now())


def all_restarted(own: Rig) -> None:
    for number in range(len(own.stands)):
        own.restarted(number)


async def test_a_wave_is_out_first_then_every_process_is_captured_and_stored():
    async with rig() as own:
        own.order(1, "hang", leg="metrics")
        waiting = asyncio.create_task(own.drain_wave())
        await until(lambda: not serving(own), "the whole fleet is out")
        assert own.fleet.upkeep.wave.reason.startswith("whole-wave drain wave-")
        waiting.cancel()
        own.stands[1].engine.recover()
        assert await own.drain_wave() == DONE
        starts = {iid: own.record(iid).captured for iid in IIDS}
        assert all(captured is not None for captured in starts.values())
        assert own.events() == ["wave_drain"]
        for iid in IIDS:
            await own.ready_to_stop(iid)
        assert own.fleet.upkeep.view().ready_to_stop
        assert own.events()[-1] == "wave_drained"


async def test_a_process_that_cannot_be_read_is_named_and_the_drain_repeated():
    async with rig() as own:
        own.order(1, "refuse")
        own.order(2, "refuse")
        told = await own.drain_wave()
        assert told.outcome is OrderOutcome.UNAVAILABLE
        assert told.error.startswith("e1, e2 are out of placement, but which processes they are")
        assert serving(own) == ()
        for stand in own.stands:
            stand.engine.recover()
        assert await own.drain_wave() == DONE
        assert own.events() == ["wave_drain"]


async def test_a_wave_comes_back_in_one_change_after_all_seven_checks_and_the_ring():
    async with rig() as own:
        await own.drain_wave()
        all_restarted(own)
        assert await own.readmit_wave() == DONE
        assert serving(own) == IIDS
        assert states(own) == {DrainState.ACTIVE}
        for iid in IIDS:
            checks = own.record(iid).checks
            assert [check.name for check in checks] == CHECKS
            assert {check.outcome for check in checks if check.name != "attestation"} == {"passed"}
        details = {check.detail for check in own.record("e0").checks if check.name == "kv_transfer"}
        assert details == {"e0 -> e1; e2 -> e0"}
        assert all(stand.engine.ledger.pulled >= 1 for stand in own.stands), "each gave its KV to the next"
        assert own.events() == ["wave_drain", "wave_completed", *["readmission"] * 3]


async def test_pinned_engines_exchange_kv_as_their_roles_permit():
    async with rig(pinned=True) as own:
        await own.drain_wave()
        all_restarted(own)
        assert await own.readmit_wave() == DONE
        transfers = {
            iid: check.detail
            for iid in IIDS
            for check in own.record(iid).checks
            if check.name == "kv_transfer"
        }
        assert transfers == {"e0": "e0 -> e1; e0 -> e2", "e1": "e0 -> e1", "e2": "e0 -> e2"}


async def test_a_fleet_of_one_is_a_wave_without_a_ring():
    async with rig(1) as own:
        assert (await own.maintenance.drain(DrainOrder(("e0",)))).outcome is OrderOutcome.DONE
        all_restarted(own)
        assert (await own.maintenance.readmit(DrainOrder(("e0",)))).outcome is OrderOutcome.DONE
        assert serving(own) == ("e0",)


async def test_one_that_was_not_restarted_keeps_the_whole_wave_out():
    async with rig() as own:
        await own.drain_wave()
        own.restarted(0)
        own.restarted(2)
        told = await own.readmit_wave()
        assert told.outcome is OrderOutcome.REFUSED
        assert told.error.startswith("e1 stays out: the check process failed (its process is not newer")
        assert told.error.endswith("readmit the wave again")
        assert (states(own), serving(own)) == ({DrainState.BLOCKED}, ())
        assert [check.name for check in own.record("e0").checks] == CHECKS[:5], "the ring never began"
        own.restarted(1)
        assert await own.readmit_wave() == DONE
        assert serving(own) == IIDS


@pytest.mark.parametrize(
    ("fault", "fields", "check"),
    [
        ("refuse", {}, "health"),
        ("wrong_model", {}, "model"),
        ("core_stopped", {}, "generation"),
        ("handoff", {"variant": "missing"}, "kv_transfer"),
    ],
)
async def test_each_broken_check_of_one_member_keeps_the_whole_wave_out(
    fault: str, fields: dict[str, Any], check: str
):
    async with rig() as own:
        await own.drain_wave()
        all_restarted(own)
        own.order(1, fault, **fields)
        told = await own.readmit_wave()
        assert told.outcome is OrderOutcome.REFUSED
        assert told.error.startswith(f"e1 stays out: the check {check} failed")
        assert (states(own), serving(own)) == ({DrainState.BLOCKED}, ())
        assert own.fleet.upkeep.wave.reason.startswith("whole-wave recovery wave-")
        assert own.events()[-2:] == ["readmission_failed", "wave_blocked"]


async def test_two_who_readmit_a_wave_at_once_share_one_validation():
    async with rig() as own:
        await own.drain_wave()
        all_restarted(own)
        gone = asyncio.create_task(own.readmit_wave())
        other = asyncio.create_task(own.readmit_wave())
        await until(lambda: states(own) == {DrainState.VALIDATING}, "it is looked at")
        gone.cancel()
        assert await other == DONE
        assert own.events().count("wave_completed") == 1


async def test_a_wave_that_is_drained_meanwhile_ends_the_readmission_of_one_engine():
    async with rig() as own:
        await own.drain("e1")
        own.restarted(1)
        own.order(1, "hang", leg="health")
        single = asyncio.create_task(own.readmit("e1"))
        await until(lambda: own.record("e1").state is DrainState.VALIDATING, "it is looked at")
        own.stands[1].engine.recover()
        assert await own.drain_wave() == DONE
        answer = await single
        assert answer.outcome is OrderOutcome.REFUSED
        assert answer.error.endswith(
            "its readmission was interrupted, by a drain or a change of owner; readmit the wave"
        )
        assert (own.record("e1").state, serving(own)) == (DrainState.DRAINING, ())
        all_restarted(own)
        own.order(1, "process_start", shift=90.0)
        assert await own.readmit_wave() == DONE


@pytest.mark.parametrize("first", [True, False])
async def test_a_drain_ends_the_validation_of_a_wave_and_whoever_waits_for_it_is_told(first: bool):
    async with rig() as own:
        await own.drain_wave()
        all_restarted(own)
        own.order(1, "hang", leg="health")
        told = asyncio.create_task(own.readmit_wave())
        await until(lambda: states(own) == {DrainState.VALIDATING}, "it is looked at")
        assert await own.drain_wave() == DONE
        assert (states(own), serving(own)) == ({DrainState.DRAINING}, ())
        own.stands[1].engine.recover()
        if first:
            answer = await told
            assert answer.outcome is OrderOutcome.REFUSED
            assert answer.error.startswith("the wave stays out: its readmission was interrupted, by a drain")
        all_restarted(own)
        assert await own.readmit_wave() == DONE, "one of its own"
        await told


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_wave_whose_owner_changes_during_its_validation_stays_out(cancelled: bool):
    async with rig() as own:
        await own.drain_wave()
        all_restarted(own)
        own.order(1, "hang", leg="health")
        told = asyncio.create_task(own.readmit_wave())
        await until(lambda: states(own) == {DrainState.VALIDATING}, "it is looked at")
        own.gate.shutting_down = True
        if cancelled:
            own.maintenance.abandon()
        own.stands[1].engine.recover()
        assert (await told).outcome is OrderOutcome.UNAVAILABLE
        assert (states(own), serving(own)) == ({DrainState.BLOCKED}, ())


@pytest.mark.parametrize("order", ["drain", "readmit"])
async def test_an_owner_that_lost_the_fleet_and_has_it_again_does_not_answer_for_what_is_gone(order: str):
    """Whoever owned in between knew nothing of the order."""
    async with rig() as own:
        before = handoff_document(e0="prefill", e1="decode", e2="decode")
        if order == "readmit":
            await own.drain_wave()
            before = replace(before, lifecycle=own.fleet.export(own.clock.now()).lifecycle)
            all_restarted(own)
        own.order(1, "slow", seconds=0.3)
        told = asyncio.create_task(own.drain_wave() if order == "drain" else own.readmit_wave())
        begun = {DrainState.DRAINING if order == "drain" else DrainState.VALIDATING}
        await until(lambda: states(own) == begun, "it has begun")
        own.maintenance.abandon()
        own.fleet.restore(before, own.clock.now())
        answered = await told
        assert answered.outcome is not OrderOutcome.DONE
        assert answered.error
        assert serving(own) == (IIDS if order == "drain" else ())


async def test_what_is_not_stored_is_said_to_be_so():
    async with rig() as own:
        own.disk.full = True
        told = await own.drain_wave()
        assert told.outcome is OrderOutcome.DONE
        assert "the checkpoint could not be written" in told.not_durable


@pytest.mark.parametrize("wave", [False, True])
async def test_a_probe_that_began_before_a_drain_sends_no_leg_after_it(wave: bool):
    async with rig() as own:
        own.order(1, "slow", seconds=0.5)
        prober = own.judge.prober
        assert isinstance(prober, Prober)
        prober.wanted(ProbeWanted(ProbeKind.INFERENCE, "e1"))
        prober.wanted(ProbeWanted(ProbeKind.EDGE, "e2", "e1"))
        await until(lambda: own.stands[1].engine.stats.legs["probe"] == 2, "both have begun")
        await (own.drain_wave() if wave else own.drain("e1"))
        await until(lambda: not prober.busy, "they have ended")
        assert own.stands[1].engine.stats.legs["probe"] == 2
        assert own.stands[2].engine.stats.legs["probe"] == (0 if wave else 1), "e2 serves on beside e1"
        assert own.fleet.standing(own.clock.now()).ejected == ()


async def test_under_whole_wave_an_ejected_engine_waits_with_all_others_for_a_wave():
    async with rig(engine_restart_policy="whole_wave") as own:
        own.fleet.standings.eject("e1", "it refused", now=own.clock.now())
        assert serving(own) == ()
        assert (await own.readmit("e1")).outcome is OrderOutcome.REFUSED
        assert (await own.readmit_wave()).error.startswith("no wave is drained, and the fleet needs one")
        await own.drain_wave()
        all_restarted(own)
        assert await own.readmit_wave() == DONE
        assert serving(own) == IIDS
