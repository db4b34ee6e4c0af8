"""monitor/maintenance.py and readmissions.py: what orders ask of engines and answer, over memory twins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from narwhal.cluster.local import LocalGate
from narwhal.engine.attestation import EngineIdentities
from narwhal.engine.memory_control import Answering, ControlAsk, MemoryControl
from narwhal.model.attestation import Attestation
from narwhal.model.engine import EngineSpec, Role
from narwhal.model.identity import METRICS_PATH, VERSION_PATH, EngineIdentity
from narwhal.model.maintenance import DrainOrder, DrainState, OrderAnswer, OrderOutcome
from narwhal.model.placement import Demand
from narwhal.monitor.identity import Questions
from narwhal.monitor.judge import Judge
from narwhal.monitor.maintenance import LOST, Maintenance
from narwhal.monitor.probe_legs import HEALTH_PATH
from narwhal.monitor.readmissions import Looking, Ownership
from narwhal.monitor.validation import NO_ATTESTATION, Checking, Result, Step, readmission_steps
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import FINAL_HEALTH, HEALTH, PASSED, PROCESS
from narwhal.ports import EngineReply
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.gates import UNBELIEVABLE, Owner
from tests.support.looking import checking_with, legs_of
from tests.support.scripted import until
from tests.support.settings import fleet_config
from tests.support.ticking import TickingClock
from tests.support.upkeep_rig import Disk

IIDS = ("e0", "e1", "e2")
START = 1_795_979_050.83
FAR_S = 3600.0
"""Of a question that nobody answers: longer than any test."""
WAVE = DrainOrder((), wave=True)


@dataclass
class Engine:
    """It answers what a drained engine is asked. `epoch`: of a fence that refuses everything, 0 = none."""

    start: float = START
    running: int = 0
    waiting: int = 0
    epoch: int = 0
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    """Times that its load was read."""
    restarts_before: int = 0
    """Which answer of its health comes from another process; 0: none."""
    healths: int = 0

    async def answer(self, ask: ControlAsk) -> EngineReply:
        if self.epoch:
            told = {"message": "old", "type": "stale_epoch", "code": "stale_epoch", "epoch": self.epoch}
            return EngineReply(409, {}, json.dumps({"error": told}).encode())
        if ask.path == HEALTH_PATH:
            await self.answers.wait()
            self.healths += 1
            if self.healths == self.restarts_before:
                self.start += 60.0
            return EngineReply(200, {}, b"")
        if ask.path == VERSION_PATH:
            return EngineReply(200, {}, b'{"version":"0.32.0"}')
        assert ask.path == METRICS_PATH
        self.asked += 1
        text = (
            f"process_start_time_seconds {self.start!r}\n"
            f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting {self.waiting}\n"
        )
        return EngineReply(200, {}, text.encode())


@dataclass
class Scene:
    engines: dict[str, Engine]
    gate: LocalGate
    fleet: Fleet
    disk: Disk
    maintenance: Maintenance
    clock: TickingClock

    async def drain(self, iid: str) -> OrderAnswer:
        return await self.maintenance.drain(DrainOrder((iid,), deadline_s=300.0))

    async def readmit(self, iid: str) -> OrderAnswer:
        return await self.maintenance.readmit(DrainOrder((iid,)))

    def restart(self, iid: str) -> None:
        self.engines[iid].start += 60.0

    def state(self, iid: str) -> DrainState:
        return self.fleet.upkeep.drains.record(iid).state

    def ready(self, iid: str) -> bool:
        return self.fleet.upkeep.drains.record(iid).ready_to_stop

    async def passes(self, iid: str) -> bool:
        """Two of them, each with an answer of the engine to look at. May it be stopped?"""
        for _ in range(2):
            before = self.engines[iid].asked
            self.maintenance.look(self.clock.now())
            await until(
                lambda before=before: self.engines[iid].asked > before or self.ready(iid), "its load is read"
            )
            await asyncio.sleep(0.01)
        return self.ready(iid)


def sidecar(attested: float) -> Answering:
    says = Attestation(
        {"vllm_version": "0.32.0"}, {"vllm_version": "test"}, EngineIdentity("0.32.0", attested)
    )

    async def answer(ask: ControlAsk) -> EngineReply:
        return EngineReply(200, {}, json.dumps(says.document()).encode())

    return answer


def played(
    story: Callable[[Scene], Awaitable[None]], *, gate: LocalGate | None = None, attested: float = 0.0
) -> None:
    """Engines e0 (prefill), e1, e2 (decode), whose checks pass but for `health` and `process`, which are the
    real ones. `attested`: the process start that every sidecar attests; 0: there are none."""

    async def main() -> None:
        owner = gate or LocalGate()
        specs = [
            EngineSpec(iid, f"http://{iid}", role=role, attestation_url=f"http://{iid}:8010/v1")
            for iid, role in zip(IIDS, (Role.PREFILL, Role.DECODE, Role.DECODE), strict=True)
        ]
        fleet, clock, disk = Fleet(fleet_config(*specs), {}), TickingClock(), Disk()
        engines = {iid: Engine() for iid in IIDS}
        control = MemoryControl({iid: one.answer for iid, one in engines.items()}, connections=8)
        sidecars = MemoryControl(dict.fromkeys(IIDS, sidecar(attested)), connections=8)
        legs = legs_of(control, owner, budget_s=FAR_S, accounts=fleet.accounts)
        ask = Questions(EngineIdentities(specs, control, sidecars=sidecars), legs, timeout_s=FAR_S)
        checking = checking_with(legs, ask)
        looking = Looking(
            checking,
            ask,
            attested=bool(attested),
            steps=lambda process: steps(checking, process),
            ring=lambda members: [],
        )

        judge = Judge(fleet, gate=owner, recorder=MemoryRecorder(), metrics=RouterMetrics(), clock=clock)
        maintenance = Maintenance(looking, Ownership(owner, disk, clock), fleet=fleet, judge=judge)
        for engine in engines.values():
            engine.answers.set()
        await story(Scene(engines, owner, fleet, disk, maintenance, clock))
        await maintenance.aclose()

    asyncio.run(main())


def steps(checking: Checking, process: Step) -> tuple[Step, ...]:
    async def passes(iid: str) -> Result:
        return PASSED, ""

    real = readmission_steps(checking, attestation=NO_ATTESTATION, process=process)
    owed = (HEALTH, PROCESS, FINAL_HEALTH)
    return tuple(step if step.name in owed else Step(step.name, passes) for step in real)


# --- an engine that knows a higher epoch -------------------------------------------------------------


@pytest.mark.parametrize("attested", [0.0, START])
@pytest.mark.parametrize("wave", [False, True])
def test_one_that_is_met_while_a_process_is_captured_ends_the_ownership(wave: bool, attested: float) -> None:
    gate = Owner()

    async def story(scene: Scene) -> None:
        scene.engines["e1"].epoch = 9
        answer = await (scene.maintenance.drain(WAVE) if wave else scene.drain("e1"))
        assert gate.told == [("e1", 9)]
        assert answer == OrderAnswer(OrderOutcome.UNAVAILABLE, LOST)

    played(story, gate=gate, attested=attested)


@pytest.mark.parametrize("wave", [False, True])
def test_one_that_is_met_by_the_check_of_the_process_ends_the_ownership(wave: bool) -> None:
    gate = Owner()

    async def story(scene: Scene) -> None:
        order = WAVE if wave else DrainOrder(("e1",))
        assert (await scene.maintenance.drain(order)).outcome is OrderOutcome.DONE
        for iid in IIDS:
            scene.restart(iid)
        scene.engines["e1"].answers.clear()
        told = asyncio.create_task(scene.maintenance.readmit(order))
        await until(lambda: scene.state("e1") is DrainState.VALIDATING, "it is looked at")
        await asyncio.sleep(0.01)
        scene.engines["e1"].epoch = 9
        scene.engines["e1"].answers.set()
        answer = await told
        assert gate.told == [("e1", 9)]
        assert answer == OrderAnswer(OrderOutcome.UNAVAILABLE, LOST)
        assert scene.state("e1") is DrainState.BLOCKED

    played(story, gate=gate)


def test_a_claim_that_nobody_can_have_reached_is_why_the_process_could_not_be_read() -> None:
    gate = Owner()

    async def story(scene: Scene) -> None:
        scene.engines["e1"].epoch = UNBELIEVABLE
        answer = await scene.drain("e1")
        assert answer.outcome is OrderOutcome.UNAVAILABLE
        assert f"(claims epoch {UNBELIEVABLE}): repeat the drain" in answer.error
        scene.engines["e1"].epoch = 0
        assert (await scene.drain("e1")).outcome is OrderOutcome.DONE

    played(story, gate=gate)


# --- what a drain waits for --------------------------------------------------------------------------


def test_a_sidecar_that_attests_another_process_captures_nothing() -> None:
    async def story(scene: Scene) -> None:
        answer = await scene.drain("e1")
        assert answer.outcome is OrderOutcome.UNAVAILABLE
        assert "the sidecar attests another process than the one that answers" in answer.error
        assert scene.fleet.upkeep.drains.record("e1").captured is None
        scene.engines["e1"].start = START - 9.0
        assert (await scene.drain("e1")).outcome is OrderOutcome.DONE
        captured = scene.fleet.upkeep.drains.record("e1").captured
        assert captured is not None
        assert captured.digest.startswith("sha256:")

    played(story, attested=START - 9.0)


@pytest.mark.parametrize("left", ["running", "waiting"])
def test_an_engine_with_work_that_another_router_sent_is_not_ready_to_stop(left: str) -> None:
    async def story(scene: Scene) -> None:
        engine = scene.engines["e1"]
        setattr(engine, left, 1)
        await scene.drain("e1")
        assert not await scene.passes("e1")
        assert scene.state("e1") is DrainState.DRAINING
        setattr(engine, left, 0)
        assert await scene.passes("e1")

    played(story)


def test_a_member_of_a_wave_waits_for_prefills_and_kv_of_the_others_whose_decodes_may_come_to_it() -> None:
    async def story(scene: Scene) -> None:
        accounts, now = scene.fleet.accounts, scene.clock.now()
        prefill = scene.fleet.reserve_prefill(Demand(10, 10), now)
        assert prefill is not None
        assert prefill.iid == "e0"
        await scene.maintenance.drain(WAVE)
        assert not await scene.passes("e1")
        accounts.hand_off(prefill, 10, since=now)
        assert not await scene.passes("e1")
        decode = scene.fleet.reserve_decode(Demand(10, 10), now, producer="e0")
        assert decode is not None
        accounts.pulled(prefill)
        other = ({"e1", "e2"} - {decode.iid}).pop()
        assert await scene.passes(other)
        assert await scene.passes("e0")
        assert not await scene.passes(decode.iid)
        scene.fleet.release(decode, now)
        assert await scene.passes(decode.iid)
        assert scene.fleet.upkeep.view().ready_to_stop

    played(story)


def test_an_engine_that_is_drained_alone_waits_for_its_own_work_only() -> None:
    async def story(scene: Scene) -> None:
        prefill = scene.fleet.reserve_prefill(Demand(10, 10), scene.clock.now())
        assert prefill is not None
        await scene.drain("e1")
        assert await scene.passes("e1")

    played(story)


# --- what a readmission answers ----------------------------------------------------------------------


@pytest.mark.parametrize("wave", [False, True])
def test_what_was_drained_again_while_it_was_stored_is_not_said_to_serve(wave: bool) -> None:
    async def story(scene: Scene) -> None:
        order = WAVE if wave else DrainOrder(("e1",))
        await scene.maintenance.drain(order)
        for iid in IIDS:
            scene.restart(iid)
        scene.disk.ready.clear()
        told = asyncio.create_task(scene.maintenance.readmit(order))
        await until(lambda: scene.fleet.eligible("e1", scene.clock.now()), "it serves")
        again = asyncio.create_task(scene.maintenance.drain(order))
        await until(lambda: scene.state("e1") is DrainState.DRAINING, "it is drained again")
        scene.disk.ready.set()
        answer = await told
        assert answer.outcome is OrderOutcome.REFUSED
        name = "the wave" if wave else "e1"
        assert answer.error.startswith(f"{name} stays out: its readmission was interrupted, by a drain")
        assert (await again).outcome is OrderOutcome.DONE

    played(story)


@pytest.mark.parametrize("wave", [False, True])
def test_a_process_that_replaces_the_checked_one_before_the_last_check_has_proved_nothing(wave: bool) -> None:
    """A supervisor restarts an engine that crashes under its checks."""

    async def story(scene: Scene) -> None:
        order = WAVE if wave else DrainOrder(("e1",))
        await scene.maintenance.drain(order)
        for iid in IIDS:
            scene.restart(iid)
        scene.engines["e1"].restarts_before = 2
        answer = await scene.maintenance.readmit(order)
        assert answer.outcome is OrderOutcome.REFUSED
        record = scene.fleet.upkeep.drains.record("e1")
        assert (record.state, record.checks[-1].name) == (DrainState.BLOCKED, FINAL_HEALTH)
        began, now = START + 60.0, START + 120.0
        assert record.checks[-1].detail == (
            f"another process answers: vLLM 0.32.0 started at {now!r}, "
            f"the checks began on vLLM 0.32.0 started at {began!r}"
        )
        assert (await scene.maintenance.readmit(order)).outcome is OrderOutcome.DONE
        assert scene.fleet.upkeep.drains.record("e1").new_process_start == now

    played(story)


def test_a_wave_that_is_drained_ends_the_validation_of_one_engine_at_once() -> None:
    """Also where its engine will not answer for as long as a check may last."""

    async def story(scene: Scene) -> None:
        await scene.drain("e1")
        scene.restart("e1")
        scene.engines["e1"].answers.clear()
        single = asyncio.create_task(scene.readmit("e1"))
        await until(lambda: scene.state("e1") is DrainState.VALIDATING, "it is looked at")
        assert (await scene.maintenance.drain(WAVE)).outcome is OrderOutcome.DONE
        await until(single.done, "whoever waits for the validation is answered")
        assert (await single).outcome is OrderOutcome.REFUSED
        assert scene.state("e1") is DrainState.DRAINING

    played(story)
