"""Probes and readmission checks over real sockets, against simulated engines that misbehave on order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from narwhal.clock import SystemClock
from narwhal.cluster.local import LocalGate
from narwhal.engine.attestation import EngineIdentities
from narwhal.engine.control import LeanControl
from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import (
    EdgeProbed,
    HealthProbed,
    InferenceProbed,
    ProbeOutcome,
    Validated,
)
from narwhal.monitor.identity import Questions
from narwhal.monitor.probe_legs import PROMPT_TOKENS
from narwhal.monitor.prober import Prober
from narwhal.monitor.validation import NO_ATTESTATION, NO_MAINTENANCE, Validation, readmission_steps
from narwhal.policy.accounts import Accounts
from narwhal.policy.readmission import ORDER, TransferPeers
from narwhal.ports import ControlClient
from narwhal.sim.engine import SimEngine
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from tests.support.engines import engines_here
from tests.support.evidence import Heard
from tests.support.looking import accounts_of_probes, checking_with, legs_of
from tests.support.scripted import until
from tests.support.serving import specs

GOOD, BAD, INCONCLUSIVE = ProbeOutcome.GOOD, ProbeOutcome.BAD, ProbeOutcome.INCONCLUSIVE
BUDGET_S = 0.5
"""Of each leg, where something hangs on purpose."""


@dataclass
class Gate(LocalGate):
    """Keeps what engines said of our epoch."""

    told: list[tuple[str, int]] = field(default_factory=list)
    shutting_down: bool = False

    def overruled(self, iid: str, epoch: int) -> bool:
        self.told.append((iid, epoch))
        return True


@dataclass
class Rig:
    stands: list[Stand]
    gate: Gate
    heard: Heard
    prober: Prober
    control: ControlClient
    accounts: Accounts
    peers: TransferPeers = field(default_factory=TransferPeers)
    streaming: set[str] = field(default_factory=set)

    def engine(self, number: int) -> SimEngine:
        return self.stands[number].engine

    def order(self, number: int, fault: str, **fields: Any) -> None:
        self.engine(number).order(parse_fault({"fault": fault, **fields}))

    async def look(self, kind: ProbeKind, iid: str, producer: str = "") -> Any:
        """What one probe showed."""
        before = len(self.heard.evidence)
        self.prober.wanted(ProbeWanted(kind, iid, producer))
        await until(lambda: self.said(before + 1), f"a {kind} probe of {iid}")
        return self.heard.evidence[-1]

    def said(self, count: int) -> bool:
        """So much evidence has come; raises the bug that keeps it from coming."""
        self.prober.take_in()
        return len(self.heard.evidence) >= count

    async def validate(self, iid: str = "e0") -> dict[str, str]:
        """Check name to outcome, with the detail of one that failed."""
        validated = await self.look(ProbeKind.READMISSION, iid)
        assert isinstance(validated, Validated)
        assert validated.conclusive
        return {
            check.name: f"failed: {check.detail}" if check.outcome == "failed" else check.outcome
            for check in validated.checks
        }


@asynccontextmanager
async def rig(
    count: int = 3,
    *,
    connections: int = 16,
    budget_s: float = 5.0,
    late: Callable[[float], bool] = lambda since: False,
) -> AsyncIterator[Rig]:
    """Engines e0, e1, e2... Which of them transfer with a validated one, `peers` says."""
    async with engines_here(count) as stands:
        engines = specs(stands, roles="p" + "d" * (count - 1))
        gate, heard = Gate(), Heard()
        control = LeanControl(engines, connections=connections, connect_timeout_s=1.0, stamp=lambda: "demo/5")
        accounts = accounts_of_probes()
        legs = legs_of(control, gate, budget_s=budget_s, accounts=accounts, late=late)
        identities = EngineIdentities(engines, control, sidecars=control)
        ask = Questions(identities, legs, timeout_s=budget_s)
        steps = readmission_steps(
            checking_with(legs, ask, peers=lambda iid: made.peers),
            attestation=NO_ATTESTATION,
            process=NO_MAINTENANCE,
        )
        prober = Prober(legs, Validation(steps), sink=heard, streaming=lambda iid: iid in made.streaming)
        made = Rig(list(stands), gate, heard, prober, control, accounts)
        try:
            yield made
        finally:
            await prober.aclose()
            await control.aclose()
        prober.take_in()
        assert control.pool().busy == 0


# --- health ------------------------------------------------------------------------------------------


async def test_a_health_probe_is_good_with_a_200_and_with_nothing_else():
    async with rig(budget_s=BUDGET_S) as made:
        assert await made.look(ProbeKind.HEALTH, "e0") == HealthProbed("e0", GOOD)
        made.engine(0).healthy_no_more = True
        assert (await made.look(ProbeKind.HEALTH, "e0")).outcome is BAD
        made.order(1, "hang", leg="health")
        assert (await made.look(ProbeKind.HEALTH, "e1")).outcome is BAD
        made.order(2, "refuse")
        assert (await made.look(ProbeKind.HEALTH, "e2")).outcome is BAD


async def test_a_miss_tells_whether_streams_moved_meanwhile():
    async with rig() as made:
        made.engine(0).healthy_no_more = made.engine(1).healthy_no_more = True
        made.streaming = {"e0", "e2"}
        for iid, moved in (("e0", True), ("e1", False), ("e2", False)):
            assert (await made.look(ProbeKind.HEALTH, iid)).streaming is moved


# --- inference ---------------------------------------------------------------------------------------


async def test_a_local_probe_runs_both_legs_on_the_suspect():
    async with rig() as made:
        assert await made.look(ProbeKind.INFERENCE, "e1") == InferenceProbed("e1", GOOD, status=200)
        seen = [one for one in made.engine(1).stats.seen if one.leg == "probe"]
        assert len(seen) == 2
        assert all(one.request.headers["x-narwhal-epoch"] == "demo/5" for one in seen)
        assert len({one.request.headers["x-request-id"] for one in seen}) == 2
        assert made.engine(0).stats.legs["probe"] == made.engine(2).stats.legs["probe"] == 0


async def test_a_probe_across_an_edge_really_pulls():
    async with rig() as made:
        for pulled in (1, 2):
            probed = await made.look(ProbeKind.INFERENCE, "e1", "e0")
            assert probed == InferenceProbed("e1", GOOD, peer="e0", status=200)
            assert made.engine(0).ledger.pulled == pulled


async def test_kv_of_a_probe_that_is_too_old_is_not_pulled_and_says_nothing():
    """As of a router that stood still between the legs."""
    asked: list[float] = []

    def late(since: float) -> bool:
        asked.append(since)
        return True

    async with rig(late=late) as made:
        before = SystemClock().now()
        assert (await made.look(ProbeKind.INFERENCE, "e1", "e0")).outcome is INCONCLUSIVE
        assert (await made.look(ProbeKind.EDGE, "e1", "e0")).outcome is INCONCLUSIVE
        assert all(before <= since <= SystemClock().now() for since in asked)
        assert len(asked) == 2
        assert made.engine(1).stats.legs["probe"] == 0
        assert made.accounts.kv(SystemClock().now())["e0"].handoffs == 2


async def test_a_stopped_core_answers_health_and_fails_the_inference_probe():
    async with rig(budget_s=BUDGET_S) as made:
        made.order(1, "core_stopped")
        assert (await made.look(ProbeKind.HEALTH, "e1")).outcome is GOOD
        assert (await made.look(ProbeKind.INFERENCE, "e1")).outcome is BAD


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ({"fault": "status", "status": 401}, 401),
        ({"fault": "status", "status": 500}, 500),
        ({"fault": "silent_first_token"}, 0),
        ({"fault": "stall", "after": 2}, 0),
        ({"fault": "no_done"}, 0),
        ({"fault": "abort"}, 0),
        ({"fault": "error_in_200", "after": 1}, 0),
        ({"fault": "rst", "after": 0}, 0),
        ({"fault": "handoff", "variant": "missing"}, 0),
    ],
)
async def test_whatever_ruins_a_leg_is_found_by_a_probe(fault: dict[str, Any], status: int):
    async with rig(budget_s=BUDGET_S) as made:
        made.engine(1).order(parse_fault(fault))
        probed = await made.look(ProbeKind.INFERENCE, "e1")
        assert (probed.outcome, probed.status) == (BAD, status)
        assert probed.detail


async def test_odd_framing_is_no_fault():
    async with rig() as made:
        for fault in ("crlf", "comments", "one_byte"):
            made.engine(1).faults.clear()
            made.order(1, fault)
            assert (await made.look(ProbeKind.INFERENCE, "e1")).outcome is GOOD, fault


async def test_a_broken_edge_is_seen_only_by_a_probe_that_crosses_it():
    async with rig() as made:
        made.order(1, "edge", port=made.engine(0).side.port)
        assert (await made.look(ProbeKind.INFERENCE, "e1", "e0")).outcome is BAD
        assert (await made.look(ProbeKind.INFERENCE, "e1", "e2")).outcome is GOOD
        assert (await made.look(ProbeKind.INFERENCE, "e1")).outcome is GOOD


async def test_a_producer_that_fails_says_nothing_of_the_consumer():
    async with rig() as made:
        for fault in ({"fault": "status", "status": 500}, {"fault": "handoff", "variant": "null"}):
            made.engine(0).faults.clear()
            made.engine(0).order(parse_fault(fault))
            probed = await made.look(ProbeKind.INFERENCE, "e1", "e0")
            assert (probed.outcome, probed.status) == (INCONCLUSIVE, 0)
        assert made.engine(1).stats.legs["probe"] == 0


async def test_a_suspect_producer_is_judged_by_who_pulls_from_it():
    async with rig() as made:

        async def probe() -> InferenceProbed:
            made.prober.wanted(ProbeWanted(ProbeKind.INFERENCE, "e0", consumer="e1"))
            await until(lambda: made.said(1), "the producer is probed")
            probed = made.heard.evidence.pop()
            assert isinstance(probed, InferenceProbed)
            assert (probed.iid, probed.peer, probed.consumer) == ("e0", "", "e1")
            return probed

        assert (await probe()).outcome is GOOD
        assert made.engine(0).ledger.pulled == 1
        made.order(0, "handoff", variant="unknown_engine")
        probed = await probe()
        assert probed.outcome is BAD, "nobody can pull from it, and the consumer is well"
        assert (probed.own_leg, probed.status) == (False, 0), "the consumer's status is not its own"
        made.order(1, "status", status=500)
        assert (await probe()).outcome is INCONCLUSIVE, "the consumer is ill by itself"
        made.order(0, "status", status=500)
        probed = await probe()
        assert (probed.outcome, probed.own_leg, probed.status) == (BAD, True, 500), (
            "its own leg fails already"
        )


async def test_probes_load_engines_as_traffic_does_and_the_books_say_so():
    async with rig(budget_s=BUDGET_S) as made:

        def held() -> dict[str, tuple[int, int]]:
            kv = made.accounts.kv(time.monotonic())
            return {iid: (one.handoffs, one.tokens) for iid, one in kv.items() if one.handoffs}

        assert (await made.look(ProbeKind.INFERENCE, "e1", "e0")).outcome is GOOD
        assert held() == {}, "it was pulled"
        assert [iid for iid, load in made.accounts.loads.items() if load.end_interval()] == ["e0"]
        assert (await made.look(ProbeKind.INFERENCE, "e1")).outcome is GOOD
        assert held() == {"e1": (1, PROMPT_TOKENS)}, "decoded where it lies, it waits for its lease"
        made.order(2, "status", status=500, leg="probe")
        assert (await made.look(ProbeKind.INFERENCE, "e2", "e0")).outcome is BAD
        assert held() == {"e0": (1, PROMPT_TOKENS), "e1": (1, PROMPT_TOKENS)}, "nobody came for it"
        assert made.accounts.resident()["e0"].prefill == 0
        made.accounts.check_invariants()


async def test_a_higher_epoch_is_the_gates_to_hear_and_no_evidence():
    async with rig() as made:
        made.engine(1).epochs.superseded_by(b"demo/9", b"probe")
        for kind in (ProbeKind.HEALTH, ProbeKind.INFERENCE):
            assert (await made.look(kind, "e1")).outcome is INCONCLUSIVE
        assert not (await made.look(ProbeKind.READMISSION, "e1")).conclusive
        assert made.gate.told == [("e1", 9)] * 3


async def test_our_own_full_pool_says_nothing():
    async with rig(connections=1, budget_s=BUDGET_S) as made:
        made.order(2, "hang", leg="health")
        taken = asyncio.create_task(made.control.get("e2", "/health", timeout_s=60.0))
        await until(lambda: made.engine(2).stats.legs["health"], "the one connection is taken")
        assert (await made.look(ProbeKind.HEALTH, "e0")).outcome is INCONCLUSIVE
        assert (await made.look(ProbeKind.INFERENCE, "e0")).outcome is INCONCLUSIVE
        assert not (await made.look(ProbeKind.READMISSION, "e0")).conclusive
        taken.cancel()
        await asyncio.wait({taken})


# --- edges -------------------------------------------------------------------------------------------


async def test_an_edge_is_good_or_bad_and_its_producers_own_failure_is_neither():
    async with rig() as made:
        assert await made.look(ProbeKind.EDGE, "e1", "e0") == EdgeProbed("e0", "e1", GOOD)
        made.order(1, "edge", port=made.engine(0).side.port)
        assert (await made.look(ProbeKind.EDGE, "e1", "e0")).outcome is BAD
        made.order(0, "status", status=503)
        assert (await made.look(ProbeKind.EDGE, "e1", "e0")).outcome is INCONCLUSIVE


@pytest.mark.parametrize("status", [408, 429])
async def test_a_busy_consumer_counts_against_neither_the_producer_nor_the_edge(status: int):
    async with rig() as made:
        made.order(1, "status", status=status, count=1)
        assert (await made.look(ProbeKind.EDGE, "e1", "e0")).outcome is INCONCLUSIVE
        made.order(1, "status", status=status, count=1)
        made.prober.wanted(ProbeWanted(ProbeKind.INFERENCE, "e0", consumer="e1"))
        await until(lambda: made.said(2), "the producer is probed")
        probed = made.heard.evidence[-1]
        assert (probed.iid, probed.outcome, probed.status) == ("e0", INCONCLUSIVE, 0)


async def test_busy_peers_do_not_fail_a_readmission():
    async with rig() as made:
        made.peers = TransferPeers(produces_to=("e1",))
        made.order(1, "status", status=429, count=1)
        made.prober.wanted(ProbeWanted(ProbeKind.READMISSION, "e0"))
        await until(lambda: made.said(1), "its checks have run")
        (validated,) = made.heard.of(Validated)
        assert not validated.conclusive, "a peer that is busy tells nothing of it"


async def test_a_consumer_that_fails_alone_too_is_told_of_itself_and_not_of_the_pair():
    async with rig() as made:
        made.order(1, "status", status=500)
        made.prober.wanted(ProbeWanted(ProbeKind.EDGE, "e1", "e0"))
        await until(lambda: made.said(2), "engine and edge are told of")
        (own,) = made.heard.of(InferenceProbed)
        (edge,) = made.heard.of(EdgeProbed)
        assert (own.iid, own.outcome, own.peer, own.status) == ("e1", BAD, "", 500)
        assert (edge.producer, edge.consumer, edge.outcome) == ("e0", "e1", INCONCLUSIVE)


# --- who runs when -----------------------------------------------------------------------------------


async def test_one_probe_of_a_kind_runs_on_an_engine_and_others_are_not_kept_waiting():
    async with rig(budget_s=60.0) as made:
        made.order(1, "hang")
        for _ in range(5):
            made.prober.wanted(ProbeWanted(ProbeKind.INFERENCE, "e1"))
            made.prober.wanted(ProbeWanted(ProbeKind.HEALTH, "e1"))
        await until(lambda: made.engine(1).stats.legs["health"], "the health probe has begun")
        assert (await made.look(ProbeKind.INFERENCE, "e2")).outcome is GOOD
        legs = made.engine(1).stats.legs
        assert (legs["health"], legs["probe"]) == (1, 1)
        assert made.prober.busy
        made.prober.abandon()
        assert not made.prober.busy
        await until(lambda: made.engine(1).stats.aborted == 2, "the engine is let go")
        made.engine(1).faults.clear()
        assert (await made.look(ProbeKind.HEALTH, "e1")).outcome is GOOD
        assert len(made.heard.evidence) == 2, "what was abandoned is not told"


async def test_edges_of_one_engine_take_turns():
    async with rig() as made:
        made.order(1, "slow", leg="probe", seconds=0.1)
        for producer in ("e0", "e2"):
            made.prober.wanted(ProbeWanted(ProbeKind.EDGE, "e1", producer))
        await until(lambda: made.said(2), "both edges are probed")
        assert [one.producer for one in made.heard.of(EdgeProbed)] == ["e0", "e2"]
        assert made.engine(2).ledger.pulled == 1


async def test_edges_of_one_producer_take_turns_and_others_do_not_wait_for_them():
    async with rig(count=6) as made:
        made.order(0, "slow", leg="probe", seconds=0.05)
        for consumer in ("e1", "e2", "e3"):
            made.prober.wanted(ProbeWanted(ProbeKind.EDGE, consumer, "e0"))
        made.prober.wanted(ProbeWanted(ProbeKind.EDGE, "e5", "e4"))
        most = 0
        while not made.said(4):
            await asyncio.sleep(0.002)
            most = max(most, made.engine(0).running)
        assert most <= 1
        probed = [(one.producer, one.consumer) for one in made.heard.of(EdgeProbed)]
        assert probed == [("e4", "e5"), ("e0", "e1"), ("e0", "e2"), ("e0", "e3")]
        assert {one.outcome for one in made.heard.of(EdgeProbed)} == {GOOD}


async def test_edges_that_wait_for_each_others_ends_all_have_their_turn():
    async with rig() as made:
        edges = [("e0", "e1"), ("e1", "e2"), ("e2", "e0"), ("e1", "e0"), ("e2", "e1"), ("e0", "e2")]
        for producer, consumer in edges:
            made.prober.wanted(ProbeWanted(ProbeKind.EDGE, consumer, producer))
        await until(lambda: made.said(6), "every edge of the ring, both ways, is probed")
        assert [(one.producer, one.consumer) for one in made.heard.of(EdgeProbed)] == edges
        assert not made.prober.busy


async def test_a_fleet_of_probes_begins_a_few_at_a_time():
    async with rig(count=40) as made:
        turns, begun = 0, []
        for stand in made.stands:
            made.prober.wanted(ProbeWanted(ProbeKind.HEALTH, stand.engine.settings.name))
        while not made.said(40):
            await asyncio.sleep(0)
            turns += 1
            begun.append(made.control.pool().busy)
        assert turns >= 5
        assert max(now - before for before, now in zip([0, *begun], begun, strict=False)) <= 8


# --- readmission checks ------------------------------------------------------------------------------


async def test_a_sound_engine_passes_all_checks_in_their_order():
    async with rig() as made:
        made.peers = TransferPeers(produces_to=("e1", "e2"))
        checks = await made.validate()
        assert tuple(checks) == ORDER
        assert {name for name, outcome in checks.items() if outcome == "skipped"} == {
            "attestation",
            "process",
        }
        assert set(checks.values()) == {"passed", "skipped"}
        assert made.engine(0).ledger.pulled == 2


async def test_without_a_live_peer_the_transfer_is_skipped():
    async with rig(count=1) as made:
        checks = await made.validate()
        assert (checks["kv_transfer"], checks["final_health"]) == ("skipped", "passed")


async def test_the_first_check_that_fails_ends_it():
    async with rig(budget_s=BUDGET_S) as made:
        made.peers = TransferPeers(produces_to=("e1",), consumes_from=("e2",))
        made.engine(0).healthy_no_more = True
        assert list(await made.validate()) == ["health"]
        made.engine(0).healthy_no_more = False
        made.order(0, "wrong_model")
        checks = await made.validate()
        assert checks["model"] == "failed: lists another-model, not simulated"
        assert list(checks) == ["health", "attestation", "model"]
        made.engine(0).faults.clear()
        made.order(0, "core_stopped")
        assert list(await made.validate())[-1] == "generation"


async def test_transfers_that_all_fail_are_a_failed_check():
    async with rig() as made:
        made.peers = TransferPeers(produces_to=("e1", "e2"))
        made.order(0, "handoff", variant="missing")
        checks = await made.validate()
        assert checks["kv_transfer"].startswith("failed: e0 -> e1: ")
        made.engine(0).faults.clear()
        made.order(0, "handoff", variant="unknown_engine")
        checks = await made.validate()
        assert checks["kv_transfer"].startswith("failed: e0 -> e1: ")
        made.engine(0).faults.clear()
        made.peers = TransferPeers(consumes_from=("e1", "e2"))
        for peer in (1, 2):
            made.order(0, "edge", port=made.engine(peer).side.port)
        checks = await made.validate()
        assert checks["kv_transfer"].startswith("failed: e1 -> e0: ")


async def test_one_broken_edge_beside_a_good_one_does_not_keep_an_engine_out():
    async with rig() as made:
        made.peers = TransferPeers(produces_to=("e1", "e2"))
        made.order(1, "edge", port=made.engine(0).side.port)
        validated = await made.look(ProbeKind.READMISSION, "e0")
        (check,) = [check for check in validated.checks if check.name == "kv_transfer"]
        assert check.outcome == "passed"
        assert check.detail.startswith("e0 -> e1: ")


async def test_a_peer_that_is_ill_by_itself_does_not_keep_an_engine_out():
    async with rig() as made:
        made.peers = TransferPeers(produces_to=("e1",))
        made.order(1, "status", status=500)
        assert not (await made.look(ProbeKind.READMISSION, "e0")).conclusive, "tried again, and no failure"
        made.peers = TransferPeers(produces_to=("e1", "e2"))
        assert (await made.validate())["kv_transfer"] == "passed"


async def test_an_engine_whose_kv_breaks_whoever_pulls_it_costs_one_peer_and_fails_its_check():
    """Too few blocks kill a decode engine, and nothing on the wire tells that descriptor from a good one."""
    async with rig(count=4) as made:
        made.peers = TransferPeers(produces_to=("e1", "e2", "e3"))
        made.order(0, "handoff", variant="few_blocks")
        checks = await made.validate()
        assert list(checks)[-1] == "kv_transfer"
        assert checks["kv_transfer"].startswith("failed: e0 -> e1: ")
        assert checks["kv_transfer"].endswith("; e1 has been ill since")
        assert [made.engine(peer).core_dead for peer in (1, 2, 3)] == [True, False, False]


async def test_peers_that_cannot_even_prefill_leave_it_open():
    async with rig() as made:
        made.peers = TransferPeers(consumes_from=("e1",))
        made.order(1, "status", status=500)
        validated = await made.look(ProbeKind.READMISSION, "e0")
        assert not validated.conclusive
        assert [check.name for check in validated.checks][-1] == "generation"
