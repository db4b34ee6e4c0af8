"""Stage `liveness` over real sockets: whose answers are evidence, and whose process answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from narwhal.cluster.local import LocalGate
from narwhal.engine.control import LeanControl
from narwhal.model.evidence import LivenessSwept, ProbeOutcome, ProcessSeen
from narwhal.monitor.liveness import HealthChecks, LivenessStage
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from tests.support.engines import engines_here
from tests.support.evidence import Heard
from tests.support.looking import legs_of
from tests.support.scripted import until
from tests.support.serving import specs

GOOD, BAD = ProbeOutcome.GOOD, ProbeOutcome.BAD


@dataclass
class Watch:
    stands: list[Stand]
    heard: Heard
    checks: HealthChecks
    stage: LivenessStage
    streaming: set[str] = field(default_factory=set)

    def order(self, number: int, fault: str, **fields: object) -> None:
        self.stands[number].engine.order(parse_fault({"fault": fault, **fields}))

    async def passes(self, count: int) -> None:
        """Each engine has answered before the next pass, or failed to."""
        for number in range(count):
            await self.stage.run(float(number))
            await until(lambda: not self.checks.busy, "every question of the pass has ended")

    def swept(self) -> dict[str, list[ProbeOutcome]]:
        outcomes: dict[str, list[ProbeOutcome]] = {}
        for one in self.heard.of(LivenessSwept):
            outcomes.setdefault(one.iid, []).append(one.outcome)
        return outcomes


@asynccontextmanager
async def watch(*, every: int, epoch: bool = False, budget_s: float = 5.0) -> AsyncIterator[Watch]:
    async with engines_here(3) as stands:
        control = LeanControl(specs(stands, roles="pdd"), connections=8, connect_timeout_s=1.0)
        heard = Heard()
        legs = legs_of(control, LocalGate(), budget_s=budget_s)
        checks = HealthChecks(legs, sink=heard, streaming=lambda iid: iid in made.streaming)
        stage = LivenessStage(checks, engines=("e0", "e1", "e2"), every=every, everyone=lambda: epoch)
        made = Watch(list(stands), heard, checks, stage)
        try:
            yield made
        finally:
            await stage.aclose()
            await control.aclose()
        checks.take_in()


async def test_every_so_many_passes_each_engine_is_swept_and_only_then_asked():
    async with watch(every=3) as made:
        await made.passes(7)
        assert made.swept() == {"e0": [GOOD] * 2, "e1": [GOOD] * 2, "e2": [GOOD] * 2}
        assert [stand.engine.stats.legs["health"] for stand in made.stands] == [2, 2, 2]


async def test_what_an_engine_says_to_a_mere_lesson_is_no_evidence():
    async with watch(every=3, epoch=True) as made:
        made.stands[1].engine.healthy_no_more = True
        await made.passes(3)
        assert [stand.engine.stats.legs["health"] for stand in made.stands] == [3, 3, 3]
        assert made.swept() == {"e0": [GOOD], "e1": [BAD], "e2": [GOOD]}


async def test_sweeps_can_be_off():
    async with watch(every=0, epoch=True) as made:
        await made.passes(5)
        assert made.heard.evidence == []


async def test_a_question_that_hangs_into_the_sweep_counts_as_its_miss_once():
    async with watch(every=2, epoch=True, budget_s=0.4) as made:
        made.order(1, "hang", leg="health")
        await made.stage.run(0.0)
        await made.stage.run(1.0)
        await until(lambda: not made.checks.busy, "the question is given up")
        assert made.swept()["e1"] == [BAD]
        assert made.stands[1].engine.stats.legs["health"] == 1


async def test_a_miss_tells_whether_the_engines_streams_moved_meanwhile():
    async with watch(every=1) as made:
        made.streaming = {"e0", "e1"}
        for number in (1, 2):
            made.stands[number].engine.healthy_no_more = True
        await made.passes(1)
        assert {one.iid: one.streaming for one in made.heard.of(LivenessSwept)} == {
            "e0": False,
            "e1": True,
            "e2": False,
        }


async def test_a_sweep_sees_which_process_answers():
    async with watch(every=1) as made:
        made.order(2, "status", leg="metrics", status=404)
        await made.passes(1)
        starts = {one.iid: one.process_start for one in made.heard.of(ProcessSeen)}
        assert set(starts) == {"e0", "e1"}
        made.stands[1].engine.begin_anew()
        made.order(0, "process_start", leg="metrics", shift=100.0)
        await made.passes(1)
        again = {one.iid: one.process_start for one in made.heard.of(ProcessSeen)}
        assert again["e0"] == starts["e0"] + 100.0
        assert again["e1"] == made.stands[1].engine.process_start


async def test_an_engine_that_is_not_there_is_missed_and_no_bug():
    async with watch(every=1) as made:
        made.order(0, "refuse")
        await made.passes(2)
        assert made.swept()["e0"] == [BAD, BAD]
