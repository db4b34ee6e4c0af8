"""What a router makes of an engine's 409 `stale_epoch`: on a prefill leg, and in its own health checks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from narwhal.clock import SystemClock
from narwhal.engine.control import LeanControl
from narwhal.model.engine import Leg
from narwhal.model.evidence import LegAnswered
from narwhal.monitor.judge import Judge
from narwhal.monitor.liveness import HealthChecks, LivenessStage
from narwhal.monitor.prober import Prober
from narwhal.policy.fleet import Fleet
from narwhal.policy.travel import Opening
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.engines import engines_here
from tests.support.gates import UNBELIEVABLE, Owner
from tests.support.looking import legs_of, prober_of
from tests.support.scripted import until
from tests.support.serving import Rig, RouterOptions, router, specs
from tests.support.settings import fleet_config, handoff_document

PROMPT = {"prompt": [1, 2, 3], "max_tokens": 2}


def knows(stand: Stand, epoch: int) -> None:
    stand.engine.epochs.superseded_by(b"demo/%d" % epoch, b"probe")


@asynccontextmanager
async def one_router(gate: Owner) -> AsyncIterator[tuple[Rig, Stand, Stand]]:
    """A prefill and a decode engine behind a router whose legs carry epoch 5."""
    async with engines_here(2) as (producer, consumer):
        config = fleet_config(*specs((producer, consumer), roles="pd"), model="simulated")
        async with router(config, RouterOptions(gate=gate, stamp="demo/5")) as rig:
            yield rig, producer, consumer


def assert_standby(response: httpx.Response) -> None:
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["code"] == "standby"


async def test_the_request_that_meets_it_is_told_standby_and_the_ownership_is_over():
    gate = Owner()
    async with one_router(gate) as (rig, producer, _):
        assert (await rig.http.post("/v1/completions", json=PROMPT)).status_code == 200
        knows(producer, 9)
        assert_standby(await rig.http.post("/v1/completions", json=PROMPT))
        assert gate.told == [("e0", 9)]
        assert rig.last.attempt_failures[0]["kind"] == "StaleEpoch"
        assert_standby(await rig.http.post("/v1/completions", json=PROMPT))
        assert (rig.totals.own.served, rig.totals.own.rejected, rig.totals.own.failed) == (1, 2, 0)
        assert producer.engine.stats.legs["prefill"] == 1
        assert producer.engine.stats.fenced == {"prefill": 1}
        assert not any(legs.prefill or legs.decode for legs in rig.fleet.resident().values())


async def test_one_that_proves_nothing_is_the_engines_own_fault():
    """Ours is the higher epoch, and the engine refuses it: not a word of it is believed."""
    gate = Owner(own=20)
    async with one_router(gate) as (rig, producer, _):
        knows(producer, 9)
        for _ in range(3):
            answer = await rig.http.post("/v1/completions", json=PROMPT)
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, "prefill")
        assert gate.told == [("e0", 9)] * 3
        assert rig.totals.own.failed == 3


async def test_a_claim_that_no_owner_can_have_reached_is_an_answer_of_the_engine_like_any_other():
    """It would refuse all our prefills for ever: as an engine that answers 401 does, it is found by that."""
    gate = Owner()
    async with one_router(gate) as (rig, producer, _):
        knows(producer, UNBELIEVABLE)
        answer = await rig.http.post("/v1/completions", json=PROMPT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "prefill")
        assert rig.last.attempt_failures[0]["kind"] == "StaleEpoch"
        (told,) = rig.heard.of(LegAnswered)
        assert (told.iid, told.leg, told.status) == ("e0", Leg.PREFILL, 409)
        assert gate.may_admit(0.0)


async def test_a_decode_leg_of_a_superseded_epoch_is_finished():
    async with one_router(Owner()) as (rig, _, consumer):
        knows(consumer, 9)
        assert (await rig.http.post("/v1/completions", json=PROMPT)).status_code == 200
        assert rig.last.decode_iid == "e1"
        assert consumer.engine.epochs.highest == {"demo": 9}


async def test_nothing_of_a_clients_headers_reaches_an_engine():
    """A client that could stamp its requests could fence every router."""
    async with one_router(Owner()) as (rig, *stands):
        lies = {"x-narwhal-epoch": "demo/99", "x-narwhal-leg": "decode", "X-Narwhal-Anything": "1"}
        assert (await rig.http.post("/v1/completions", json=PROMPT, headers=lies)).status_code == 200
        for stand, leg in zip(stands, ("prefill", "decode"), strict=True):
            (seen,) = [seen.request.headers for seen in stand.engine.stats.seen if seen.leg == leg]
            ours = {name: value for name, value in seen.items() if name.startswith("x-narwhal")}
            assert ours == {"x-narwhal-epoch": "demo/5", "x-narwhal-leg": leg}


# --- health checks -----------------------------------------------------------------------------------


@dataclass
class Sweep:
    fleet: Fleet
    gate: Owner
    judge: Judge
    checks: HealthChecks
    prober: Prober
    stage: LivenessStage
    stands: list[Stand]

    def seen(self) -> list[int]:
        return [stand.engine.stats.legs["health"] for stand in self.stands]


@asynccontextmanager
async def sweep(*, stamp: str | None, count: int = 3) -> AsyncIterator[Sweep]:
    async with engines_here(count) as stands:
        config = fleet_config(*specs(stands, roles="p" + "d" * (count - 1)), model="simulated")
        fleet, gate = Fleet(config, {}), Owner()
        control = LeanControl(
            config.engines, connections=2 * count, connect_timeout_s=1.0, stamp=lambda: stamp
        )
        judge = Judge(
            fleet, gate=gate, recorder=MemoryRecorder(), metrics=RouterMetrics(), clock=SystemClock()
        )
        legs = legs_of(control, gate, budget_s=2.0)
        checks = HealthChecks(legs, sink=judge, streaming=lambda iid: False)
        judge.prober = prober = prober_of(legs, judge)
        stage = LivenessStage(checks, engines=fleet.engines, every=0, everyone=lambda: stamp is not None)
        yield Sweep(fleet, gate, judge, checks, prober=prober, stage=stage, stands=list(stands))
        await stage.aclose()
        await prober.aclose()
        await control.aclose()


def owe_checks(fleet: Fleet) -> None:
    roles = {iid: role.value for iid, role in fleet.roles().items()}
    fleet.restore(handoff_document(**roles), 0.0, opening=Opening(cautious=True))


async def test_each_pass_teaches_every_engine_the_epoch_also_a_restarted_one():
    async with sweep(stamp="demo/5", count=20) as made:
        engines = [stand.engine for stand in made.stands]
        await made.stage.run(0.0)
        await until(lambda: all(engine.epochs.highest == {"demo": 5} for engine in engines), "all learn")
        await until(lambda: not made.checks.busy, "all answers are in")
        engines[7].begin_anew()
        await made.stage.run(1.0)
        await until(lambda: engines[7].epochs.highest == {"demo": 5}, "it learns again")
        assert made.gate.told == []


async def test_a_check_that_is_refused_ends_the_ownership():
    async with sweep(stamp="demo/5") as made:
        knows(made.stands[2], 9)
        await made.stage.run(0.0)
        await until(lambda: made.gate.told == [("e2", 9)], "the refusal is told")


async def test_a_check_that_is_refused_by_a_claim_that_cannot_be_true_is_a_failed_check():
    async with sweep(stamp="demo/5") as made:
        knows(made.stands[2], UNBELIEVABLE)
        for misses in (1, 2):
            made.checks.sweep(made.fleet.engines)
            await until(lambda misses=misses: len(made.gate.told) == misses, "it refuses")
            await until(lambda: not made.checks.busy, "all answers are in")
        assert made.fleet.standings.ejected() == ("e2",)


async def test_without_a_cluster_only_engines_that_owe_a_check_are_asked():
    async with sweep(stamp=None) as made:
        await made.stage.run(0.0)
        owe_checks(made.fleet)
        made.judge.tick(1.0)
        await made.stage.run(1.0)
        await until(lambda: made.fleet.standings.unverified() == (), "good checks")
        await made.stage.run(2.0)
        assert made.seen() == [1, 1, 1]


async def test_an_engine_that_hangs_or_is_ill_owes_its_check_on_and_is_asked_once_at_a_time():
    async with sweep(stamp=None) as made:
        ill = made.stands[2].engine
        made.stands[1].engine.order(parse_fault({"fault": "hang", "leg": "health"}))
        ill.healthy_no_more = True
        owe_checks(made.fleet)
        for passes in range(1, 5):
            await made.stage.run(float(passes))

            def asked(passes: int = passes) -> bool:
                """Not while the last answer is awaited, so that may take several ticks."""
                return made.seen()[2] == passes or bool(made.judge.tick(float(passes)))

            await until(asked, "asked again")
        assert made.fleet.standings.unverified() == ("e1", "e2")
        assert made.seen() == [1, 1, 4]
        assert not made.fleet.can_serve(Leg.DECODE, 0.0) or made.fleet.available(0.0) == ("e0",)
        ill.healthy_no_more = False
        made.judge.tick(5.0)
        await made.stage.run(5.0)
        await until(lambda: made.fleet.standings.unverified() == ("e1",), "the ill one is well")


async def test_a_new_owner_tells_every_engine_its_epoch_also_those_that_are_just_being_checked():
    """A check that began before the takeover may carry no epoch, or the one before."""
    async with sweep(stamp="demo/5", count=20) as made:
        engines = [stand.engine for stand in made.stands]
        for engine in engines:
            engine.order(parse_fault({"fault": "hang", "leg": "health", "count": 1}))
        made.checks.ask(made.fleet.engines)
        await until(lambda: made.seen() == [1] * 20, "every engine is being checked")
        made.checks.introduce(made.fleet.engines)
        await until(lambda: made.seen() == [2] * 20, "every engine is asked anew")
        await made.stage.run(1.0)


async def test_a_new_owner_tells_every_engine_also_while_another_round_of_checks_begins():
    async with sweep(stamp="demo/5", count=20) as made:
        made.checks.ask(("e3",))
        made.checks.introduce(made.fleet.engines)
        engines = [stand.engine for stand in made.stands]
        await until(lambda: all(engine.epochs.highest == {"demo": 5} for engine in engines), "all learn")
        await made.stage.run(1.0)
