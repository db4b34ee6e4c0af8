"""Engines that fail, are found out, and come back: the wired probes and stages over real sockets.

Passes are run by hand on a clock that a test moves, one second a pass, so "within two probe intervals" is
a number of passes and never a matter of the machine's load.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from narwhal.cluster.local import LocalGate
from narwhal.engine.control import LeanControl
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.monitor.judge import Judge
from narwhal.monitor.loop import MonitorLoop, PassRecord
from narwhal.policy.fleet import Fleet
from narwhal.policy.monitoring import Monitoring
from narwhal.runtime.probing import Probing
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.engines import engines_here
from tests.support.probing_rig import wired
from tests.support.scripted import until
from tests.support.serving import specs
from tests.support.settings import engine_settings, fleet_config, handoff_document, recovery_settings
from tests.support.ticking import TickingClock

EVERY = 10
"""Passes between looks at an ejected engine (`recovery.readmit_every`, the default)."""
BUDGET_S = 0.5


@dataclass
class Router:
    """What watches engines in a router, and nothing that serves."""

    stands: list[Stand]
    clock: TickingClock
    fleet: Fleet
    judge: Judge
    recorder: MemoryRecorder
    probing: Probing
    control: LeanControl
    loop: MonitorLoop
    gate: LocalGate

    def order(self, number: int, fault: str, **fields: Any) -> None:
        self.stands[number].engine.order(parse_fault({"fault": fault, **fields}))

    def repair(self, number: int) -> None:
        self.stands[number].engine.recover()

    async def settled(self) -> None:
        """Every probe under way has said what it saw."""
        await until(lambda: not self.probing.busy, "probes end")

    async def passes(self, count: int = 1) -> None:
        for _ in range(count):
            await self.loop.run_pass()
            await self.settled()
            self.clock.now_s += 1.0

    async def passes_until(self, condition: Callable[[], bool], *, most: int) -> int:
        """How many passes it took, none included; fails after `most`."""
        for done in range(most + 1):
            if condition():
                return done
            await self.passes()
        raise AssertionError(f"not within {most} passes: {self.told()}")

    def fail(self, iid: str, failure: FailureClass, *, peer: str = "", count: int = 3) -> None:
        """So many decode legs of clients end like that."""
        for number in range(count):
            request = b"request-%d" % number
            self.judge.report(
                LegFailed(iid, Leg.DECODE, failure, f"{failure}:x", f"{failure}", peer=peer, request=request)
            )

    def out(self, iid: str) -> bool:
        return self.fleet.standings.is_ejected(iid)

    def serves(self, iid: str) -> bool:
        return self.fleet.eligible(iid, self.clock.now())

    def told(self, kind: str = "") -> list[tuple[str, str]]:
        """(kind, reason) of what was told, oldest first."""
        events = [(name, fields["reason"]) for name, fields in self.recorder.events if "reason" in fields]
        return [event for event in events if kind in ("", event[0])]


@asynccontextmanager
async def watched(count: int = 3, *, connections: int = 16, **recovery: Any) -> AsyncIterator[Router]:
    """Engines e0 (prefill), e1, e2... (decode); nothing sweeps unless `liveness_every` says so."""
    async with engines_here(count) as stands:
        config = fleet_config(
            *specs(stands, roles="p" + "d" * (count - 1)),
            model="simulated",
            engine=engine_settings(health_timeout_s=BUDGET_S, first_token_timeout_s=BUDGET_S),
            recovery=recovery_settings(**{"readmit_every": EVERY, "liveness_every": 0, **recovery}),
        )
        own = wired(config, connections=connections)
        stages = own.probing.stages(everyone=lambda: False)
        monitoring = Monitoring(limit=1, stages=[stage.name for stage in stages])
        record = PassRecord(monitoring, own.recorder, own.metrics)
        loop = MonitorLoop(stages, record, gate=own.gate, clock=own.clock, interval_s=1.0)
        parts = (own.clock, own.fleet, own.judge, own.recorder, own.probing, own.control)
        yield Router(list(stands), *parts, loop, own.gate)
        for stage in stages:
            await stage.aclose()
        await own.probing.aclose()
        assert not monitoring.degraded, monitoring.reason


async def test_probes_count_the_age_of_their_kv_on_the_routers_clock_and_to_the_same_bound():
    async with watched() as router:
        reply = await router.control.get("e0", "/health", timeout_s=30.0)
        assert reply.not_before == router.clock.now()
        late = router.probing._late
        assert [late(router.clock.now() - age_s) for age_s in (24.9, 25.1)] == [False, True]


# --- found out ---------------------------------------------------------------------------------------


async def test_an_engine_without_traffic_that_dies_is_out_after_two_sweeps():
    async with watched(liveness_every=5, liveness_misses=2) as router:
        router.order(1, "refuse")
        assert await router.passes_until(lambda: router.out("e1"), most=20) == 10
        assert [router.serves(iid) for iid in ("e0", "e1", "e2")] == [True, False, True]
        (reason,) = [reason for kind, reason in router.told("ejection")]
        assert "2 health checks in a row missed" in reason


async def test_a_stopped_core_is_held_at_once_and_out_by_its_probe_with_health_answering_200():
    async with watched(liveness_every=1) as router:
        router.order(1, "core_stopped")
        router.fail("e1", FailureClass.STREAM)
        assert not router.serves("e1"), "held before any probe has ended"
        await until(lambda: router.out("e1"), "its probe fails")
        assert [kind for kind, _ in router.told()] == ["hold", "hold_ended", "ejection"]
        assert "an inference probe failed" in router.told("ejection")[0][1]


async def test_timeouts_are_followed_by_health_and_then_by_inference():
    async with watched() as router:
        router.order(1, "core_stopped")
        router.fail("e1", FailureClass.TIMEOUT)
        await until(lambda: router.out("e1"), "health is good, inference is not")
        assert router.stands[1].engine.stats.legs["health"] == 1


async def test_an_engine_that_is_well_is_freed_by_its_probe():
    async with watched() as router:
        router.fail("e1", FailureClass.STREAM, peer="e0")
        assert not router.serves("e1")
        await until(lambda: router.serves("e1"), "its probe is good")
        assert router.stands[0].engine.ledger.pulled == 1, "across the edge that had failed"
        router.fail("e1", FailureClass.STREAM, count=2)
        assert router.serves("e1"), "its streak began anew"


async def test_a_probe_of_our_own_full_pool_keeps_the_hold_until_the_next_one():
    async with watched(connections=1) as router:
        router.order(2, "hang", leg="health")
        taken = asyncio.create_task(router.control.get("e2", "/health", timeout_s=60.0))
        await until(lambda: router.stands[2].engine.stats.legs["health"], "the one connection is taken")
        router.fail("e1", FailureClass.STREAM)
        await router.settled()
        assert not router.serves("e1")
        assert not router.out("e1")
        taken.cancel()
        await asyncio.wait({taken})
        assert await router.passes_until(lambda: router.serves("e1"), most=2 * EVERY) <= EVERY + 1


# --- back --------------------------------------------------------------------------------------------


async def test_a_repaired_engine_is_back_within_two_probe_intervals():
    async with watched(liveness_every=1, liveness_misses=1) as router:
        for broken_for in (0, 3, EVERY - 1, EVERY, 2 * EVERY + 1):
            router.order(1, "refuse")
            await router.passes_until(lambda: router.out("e1"), most=2)
            await router.passes(broken_for)
            assert router.out("e1")
            router.repair(1)
            assert await router.passes_until(lambda: router.serves("e1"), most=2 * EVERY) <= EVERY + 1


async def test_an_engine_with_the_wrong_model_stays_out_with_the_checks_name():
    async with watched(liveness_every=1, liveness_misses=1) as router:
        router.order(1, "refuse")
        await router.passes_until(lambda: router.out("e1"), most=2)
        router.repair(1)
        router.order(1, "wrong_model")
        await router.passes(3 * EVERY)
        assert router.out("e1")
        reason = "model: lists another-model, not simulated"
        assert router.told("readmission_failed") == [("readmission_failed", reason)], "told once"
        router.repair(1)
        await router.passes_until(lambda: router.serves("e1"), most=2 * EVERY)


async def test_an_engine_that_cannot_hand_over_its_kv_stays_out():
    async with watched() as router:
        router.order(0, "handoff", variant="missing")
        router.fail("e0", FailureClass.KV_HANDOFF)
        await until(lambda: router.out("e0"), "its probe fails")
        router.repair(0)
        router.order(0, "handoff", variant="unknown_engine")
        await router.passes(EVERY + 1)
        assert router.out("e0")
        (reason,) = [reason for _, reason in router.told("readmission_failed")]
        assert reason.startswith("kv_transfer: e0 -> e1: ")
        router.repair(0)
        await router.passes_until(lambda: router.serves("e0"), most=2 * EVERY)
        assert router.stands[0].engine.ledger.pulled == 2, "both decode engines pulled from it"


async def test_the_last_engine_of_a_kind_goes_by_a_confirmed_failure_and_comes_back_alone():
    async with watched(count=2, liveness_every=1, liveness_misses=1) as router:
        for number in (0, 1):
            router.order(number, "refuse")
        await router.passes_until(lambda: router.out("e0") and router.out("e1"), most=2)
        assert not router.fleet.can_serve(Leg.PREFILL, router.clock.now())
        router.repair(1)
        await router.passes_until(lambda: router.serves("e1"), most=2 * EVERY)
        assert router.out("e0")
        assert router.fleet.can_serve(Leg.PREFILL, router.clock.now()), "unpinned, it takes both legs"


# --- without control ---------------------------------------------------------------------------------


async def test_a_router_without_control_asks_nothing_of_any_engine():
    async with watched(liveness_every=1) as router:
        router.fail("e1", FailureClass.CONNECTION)
        assert router.out("e1")
        router.gate.shutting_down = True
        asked = [sum(stand.engine.stats.legs.values()) for stand in router.stands]
        await router.passes(2 * EVERY)
        assert [sum(stand.engine.stats.legs.values()) for stand in router.stands] == asked
        assert router.out("e1")
        router.gate.shutting_down = False
        await router.passes_until(lambda: router.serves("e1"), most=EVERY)


# --- takeovers ---------------------------------------------------------------------------------------


async def test_what_a_takeover_brings_is_probed_at_once_and_not_in_the_next_pass():
    async with watched() as router:
        document = replace(
            handoff_document(e0="prefill", e1="decode", e2="decode"),
            ejected=("e1",),
            inference_sources={"e2": ("e0",)},
        )
        router.probing.when_restoring()
        router.fleet.restore(document, router.clock.now())
        assert [router.serves(iid) for iid in ("e0", "e1", "e2")] == [True, False, False]
        router.probing.when_open()
        await until(lambda: router.serves("e1") and router.serves("e2"), "both are found well")
        assert router.stands[0].engine.ledger.pulled >= 1


async def test_what_began_under_another_ownership_is_not_judged_in_this_one():
    async with watched() as router:
        router.order(1, "hang", leg="probe")
        router.fail("e1", FailureClass.STREAM)
        await until(lambda: router.stands[1].engine.stats.legs["probe"], "the probe is under way")
        router.probing.when_restoring()
        await until(lambda: router.stands[1].engine.stats.aborted, "it is ended")
        router.fleet.restore(handoff_document(e0="prefill", e1="decode", e2="decode"), router.clock.now())
        router.probing.when_open()
        await router.settled()
        assert router.serves("e1")
        assert router.told("ejection") == []


async def test_what_is_under_way_when_an_ownership_ends_is_ended_unsaid():
    async with watched() as router:
        router.order(1, "hang", leg="probe")
        router.fail("e1", FailureClass.STREAM)
        await until(lambda: router.stands[1].engine.stats.legs["probe"], "the probe is under way")
        router.probing.when_ended()
        await until(lambda: router.stands[1].engine.stats.aborted, "it is ended")
        assert not router.probing.busy
        assert router.told("ejection") == []


async def test_an_engine_whose_traffic_refutes_its_good_probes_is_out_for_longer_each_time():
    async with watched() as router:
        for intervals in (0, 1, 2, 2):
            router.clock.now_s -= 0.9  # Just behind a pass.
            router.fail("e1", FailureClass.STREAM)
            await router.settled()
            router.clock.now_s += 0.9
            passes = await router.passes_until(lambda: router.serves("e1"), most=2 * EVERY)
            assert passes == intervals * EVERY, router.told("hold")
