"""Every field of the operator documents that the resting table does not name changes on real routers.

One scenario drives routers with and without a store, looks at their documents again and again, and notes
the values of each leaf. A field that nothing moves is either dead or belongs into `narwhal.api.resting`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from narwhal.api.documents import handoff_document, state_document
from narwhal.api.resting import CLUSTER, HANDOFF, RESTING, STANDBY_READY, STATE
from narwhal.clock import SystemClock
from narwhal.cluster.local import LocalGate
from narwhal.cluster.state import Identity, OwnState
from narwhal.engine.control import LeanControl
from narwhal.model.decoding import DecodeSeen
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    EdgeProbed,
    FailureClass,
    InferenceProbed,
    LegFailed,
    LegSucceeded,
    ProbeOutcome,
    ProcessSeen,
    Validated,
)
from narwhal.model.monitoring import GaugeSample
from narwhal.model.placement import Demand
from narwhal.model.state_view import HandoffView
from narwhal.monitor.controller import ControllerStage
from narwhal.monitor.drains import DrainsStage
from narwhal.monitor.health import HealthStage
from narwhal.monitor.judge import Judge
from narwhal.monitor.lag import LoopLag
from narwhal.monitor.liveness import HealthChecks, LivenessStage
from narwhal.monitor.loop import MonitorLoop, PassRecord
from narwhal.monitor.model_card import ModelCard
from narwhal.monitor.readmission import ReadmissionStage
from narwhal.monitor.rollover import RolloverStage
from narwhal.monitor.telemetry import TelemetryStage
from narwhal.policy.handoff_codec import to_fields
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.drift_story import drift_story, handoff_of, role_story, slow, specs
from tests.support.engines import EngineProcess, engine_process
from tests.support.fleets import COMPLETE_CONTRACT
from tests.support.leaves import Seen
from tests.support.looking import legs_of, prober_of
from tests.support.own_router import NOW, Own, Still
from tests.support.ports import free_port
from tests.support.processes import LIVENESS_S, eventually
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process
from tests.support.sidecars import attestation_file, sidecar
from tests.support.upkeep_story import show_drains

DOCUMENTS = {
    "state": "/narwhal/state",
    "handoff": "/narwhal/handoff",
    "cluster": "/narwhal/cluster",
    "ready": "/ready",
    "health": "/health",
}

FIXED = {
    f"{name}.{head}" for name in ("state", "handoff", "cluster") for head in ("schema", "schema_version")
}
FIXED |= {"cluster.routers[].version", "handoff.mirrored", "handoff.holds.*.kind"}
FIXED |= {"state.flips[].rule", "state.control.flips_refused[].rule"}
"""The same in every document of this version that has them; an own handoff has no `mirrored`, the holds
that travel as such are quarantines, and role control has one rule."""

LEASE = ("--lease-ttl", "3", "--lease-renew-interval", "0.3", "--lease-safety-margin", "0.5")
KEY = "TEST_ENGINE_KEY"


def look(seen: Seen, *routers: Router) -> None:
    """Notes all documents of the routers as they are now."""
    for router in routers:
        for name, path in DOCUMENTS.items():
            document = router.get(path)
            if "error" not in document:
                seen.show(name, document)


# --- requests --------------------------------------------------------------------------------------


def completion(*, max_tokens: int = 2, stream: bool = False) -> bytes:
    return json.dumps({"prompt": "a few words", "max_tokens": max_tokens, "stream": stream}).encode()


class Sent:
    """A request that is sent and not read: it lives until it is closed."""

    def __init__(self, router: Router, body: bytes) -> None:
        self._connection = http.client.HTTPConnection(router.url.removeprefix("http://"), timeout=LIVENESS_S)
        self._connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})

    def status(self) -> int:
        """Waits for the whole answer."""
        with self._connection.getresponse() as answer:
            answer.read()
            return answer.status

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Sent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(router: Router, body: bytes, status: int) -> None:
    with Sent(router, body) as sent:
        assert sent.status() == status


def order(engines: EngineProcess, fault: str, **fields: Any) -> None:
    for engine in engines.engines:
        engine.order(fault, **fields)


def clear(engines: EngineProcess) -> None:
    for engine in engines.engines:
        engine.clear()


# --- the scenario, part by part --------------------------------------------------------------------


def profiles(folder: Path, engines: EngineProcess) -> str:
    """A store of profiles so slow that every placement misses its target."""
    rows = [
        {
            "iid": engine.name,
            "ttft_a": 0.0,
            "ttft_b": 1.0,
            "ttft_c": 9.0,
            "tpot_slope": 0.001,
            "tpot_request_slope": 0.0,
            "tpot_intercept": 9.0,
            "decode_min_requests": 1,
            "decode_max_requests": 64,
            "decode_min_kv_tokens": 1,
            "decode_max_kv_tokens": 100000,
            "decode_fit_mape": 0.01,
            "decode_cv_mape": 0.01,
        }
        for engine in engines.engines
    ]
    path = folder / "profiles.json"
    document = {"schema": "narwhal.profiles", "schema_version": 1, "profiles": rows}
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def alone(seen: Seen, folder: Path) -> None:
    """A router without a store: every outcome, every seat, monitoring down and up again."""
    with engine_process(4, "--interval", "0.02") as engines, ExitStack() as stack:
        fleet = fleet_document(
            engines.engines,
            serving={
                "max_connections": 2,
                "request_timeout_s": 4,
                "admission_margin": 0.25,
                "queue_capacity": 1,
                "queue_timeout_s": 4,
                "max_attempts": 2,
            },
            engine={"pool_timeout_s": 4, "first_token_timeout_s": 3.5},
            controller={"monitor_interval_s": 0.05, "monitor_failure_limit": 2},
            profiles={"path": profiles(folder, engines)},
        )
        router = stack.enter_context(router_process(folder / "alone", fleet, "--max-concurrent", "3"))
        look(seen, router)
        every_outcome(seen, router, engines)
        degraded_and_back(seen, router)


def every_outcome(seen: Seen, router: Router, engines: EngineProcess) -> None:
    ask(router, completion(), 200)
    ask(router, b"{", 400)
    order(engines, "status", leg="decode", status=500, count=1)
    ask(router, completion(), 500)  # the same on two engines: it may be the request
    clear(engines)
    look(seen, router)
    order(engines, "slow", leg="prefill", seconds=1)
    with Sent(router, completion()) as waiting:
        eventually(lambda: resident(router, "prefill") == 1, what="a prefill leg is resident")
        look(seen, router)
        assert waiting.status() == 200
    clear(engines)
    seats(seen, router)
    order(engines, "slow", leg="prefill", seconds=2)
    order(engines, "silent_first_token", leg="decode")
    ask(router, completion(), 504)
    clear(engines)
    eventually(router.idle, what="idle")
    look(seen, router)
    state = router.state()
    for counter in ("served", "failed", "unserved", "rejected", "expired", "cancelled", "invalid_requests"):
        assert state[counter] > 0, counter


def seats(seen: Seen, router: Router) -> None:
    """Two streams take both seats; a third request waits for one, a fourth in line, a fifth is too many."""
    long = completion(max_tokens=2000, stream=True)
    with Sent(router, long), Sent(router, long):
        eventually(lambda: resident(router, "decode") == 2, what="both seats taken")
        with Sent(router, completion()):
            eventually(lambda: waiting(router) == 1, what="a third request waits for a seat")
            with Sent(router, completion()):
                eventually(lambda: router.state()["admission"]["queued"] == 1, what="a fourth is in line")
                look(seen, router)
                ask(router, completion(), 429)
    eventually(router.idle, what="the clients' leaving freed every seat")


def resident(router: Router, leg: str) -> int:
    return sum(int(legs[leg]) for legs in router.state()["resident"].values())


def waiting(router: Router) -> int:
    return sum(int(pool["waiting"]) for pool in router.state()["http_pools"].values())


def degraded_and_back(seen: Seen, router: Router) -> None:
    """The checkpoint's folder is taken away: its writes fail until it is there again."""
    hidden = router.folder.with_name("hidden")
    router.folder.rename(hidden)
    eventually(lambda: router.get("/ready")["reason"].startswith("monitoring degraded"), what="degraded")
    assert router.get("/ready")["reason"] == "monitoring degraded: handoff FileNotFoundError"
    assert router.get("/health")["status"] == "degraded"
    ask(router, completion(), 503)
    look(seen, router)
    hidden.rename(router.folder)
    eventually(router.ready, what="recovered")
    ask(router, completion(), 200)
    look(seen, router)
    events = ["monitoring_stage_failure", "monitoring_degraded", "monitoring_recovered"]
    eventually(lambda: set(events) <= kinds(router), what="the journal tells of it")


def kinds(router: Router) -> set[str]:
    return {str(row.get("kind")) for row in router.journal()}


def with_store(seen: Seen, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair on a store: handed over, frozen, fenced, blocked."""
    monkeypatch.setenv(KEY, "k1")
    with ExitStack() as stack:
        options = ("--model", "other", "--api-key-env", KEY)
        engines = stack.enter_context(engine_process(2, *options))
        store = stack.enter_context(running(on("redis-server"), folder / "redis"))
        fleet = other_fleet(engines)
        first = stack.enter_context(member(folder / "first", fleet, store))
        second = stack.enter_context(member(folder / "second", fleet, store, "--standby"))
        eventually(lambda: "mirrored" in second.get("/narwhal/handoff"), what="the standby mirrors")
        eventually(lambda: known(first) == known(second) == 2, what="each knows both")
        look(seen, first, second)
        ask(first, completion(), 200)
        look(seen, first, second)
        first.process.stop()
        eventually(second.ready, what="the standby took over")
        look(seen, second)
        frozen(seen, second, store)
        unlike = {**fleet, "slo": {"ttft_s": 3.5, "tpot_s": 0.3}}
        careful = ("--standby", "--standby-max-handoff-age", "0")
        third = stack.enter_context(member(folder / "third", unlike, store, *careful))
        eventually(lambda: third.get("/ready")["drift"], what="the standby tells its drift")
        look(seen, third)
        engines.engines[0].order("status", leg="health", status=503)
        blocked(seen, second, third, store)
        assert third.state()["breaker"]["verifying"] == ["e0"]
        look(seen, third)
        engines.engines[0].clear()
        eventually(lambda: not third.state()["breaker"]["verifying"], what="its engine is sound")
        look(seen, third)


def known(router: Router) -> int:
    return len(router.get("/narwhal/cluster")["routers"])


def other_fleet(engines: EngineProcess) -> dict[str, Any]:
    """A fleet that differs from the other one in every setting that the documents show."""
    fleet = fleet_document(
        engines.engines,
        slo={"ttft_s": 3.0, "tpot_s": 0.3},
        engine={"engine_api_key_env": KEY},
        controller={
            "monitor_interval_s": 0.1,
            "thresholds": {
                "expand": 1.5,
                "shrink": 0.25,
                "cooldown_s": 1,
                "dwell_s": 2,
                "sustained_intervals": 4,
                "panic_ratio": 3,
                "flip_resident_guard": 5,
            },
        },
    )
    fleet["model"] = "other"
    fleet["engines"][0]["role"], fleet["engines"][1]["role"] = "decode", "prefill"
    fleet["engines"][0]["pin"] = True
    return fleet


@contextmanager
def member(folder: Path, fleet: dict[str, Any], store: RedisServer, *options: str) -> Iterator[Router]:
    url = f"redis://127.0.0.1:{store.port}"
    with router_process(folder, fleet, "--redis-url", url, *LEASE, *options) as router:
        yield router


def frozen(seen: Seen, owner: Router, store: RedisServer) -> None:
    """The store stops answering: counted first, fenced when the lease has run out, owner again later."""
    store.freeze()
    try:
        eventually(lambda: owner.state()["ha"]["store"]["failures"] > 0, what="failures are counted")
        look(seen, owner)
        held = owner.get("/ready")
        eventually(lambda: owner.get("/ready")["reason"].startswith("fenced"), what="fenced")
        look(seen, owner)
        fenced = owner.get("/ready")
        assert (fenced["epoch"], fenced["holder"]) == (held["epoch"], held["holder"]), (
            "the lease as last seen"
        )
    finally:
        store.thaw()
    eventually(owner.ready, what="owner again")
    look(seen, owner)


def blocked(seen: Seen, owner: Router, successor: Router, store: RedisServer) -> None:
    """A successor that may not publish: it opens by a renewal and says that its handoff is blocked."""
    eventually(lambda: successor.get("/ready")["ready_to_take"], what="ready to take")
    with store.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-xtrim")
        owner.process.stop()
        eventually(successor.ready, what="the successor opened without a publish")
        assert successor.state()["ha"]["blocked"]
        look(seen, successor)
        client.execute_command("ACL", "SETUSER", "default", "+xtrim")
        eventually(lambda: not successor.state()["ha"]["blocked"], what="published again")
        look(seen, successor)


def without_answer(seen: Seen, folder: Path) -> None:
    """A router whose store nobody serves: it stands by, and could take nothing over."""
    with engine_process(2) as engines:
        fleet = fleet_document(engines.engines)
        url = f"redis://127.0.0.1:{free_port()}"
        with router_process(folder / "lonely", fleet, "--redis-url", url, "--standby") as router:
            assert router.get("/ready")["reason"] == "lease store unavailable"
            assert router.get("/narwhal/handoff")["error"]["code"] == "standby", "no document yet"
            look(seen, router)


def contracted(seen: Seen, folder: Path) -> None:
    """Another restart policy, which needs a complete contract."""
    with engine_process(2) as engines:
        fleet = fleet_document(
            engines.engines,
            recovery={"engine_restart_policy": "whole_wave"},
            engine_contract=dict(COMPLETE_CONTRACT),
        )
        port = free_port()
        for row in fleet["engines"]:
            row["attestation_url"] = f"{row['url']}/attestation"
        fleet["engines"][0]["attestation_url"] = f"http://127.0.0.1:{port}/v1/attestation"
        with router_process(folder / "contracted", fleet, ready=False) as router:
            look(seen, router)
            paper = attestation_file(folder / "papers")
            with sidecar(engines.engines[0], paper, "--port", str(port)):
                eventually(
                    lambda: len(router.get("/narwhal/lifecycle")["process_starts"]) == 1,
                    what="one engine shows what it is",
                )
                look(seen, router)


def failing_stages(seen: Seen) -> None:
    """Stages that no outside event makes fail: the real loop over what cannot be read."""

    def unreadable(now: float, lag_s: float) -> GaugeSample:
        raise ZeroDivisionError("no gauges")

    def unreadable_ownership() -> bool:
        raise ZeroDivisionError("no ownership")

    class UnreadableGate(LocalGate):
        def may_admit(self, now: float) -> bool:
            raise ZeroDivisionError("no gate")

    class UnreadableDrains:
        def look(self, now: float) -> None:
            raise ZeroDivisionError("no records")

        async def aclose(self) -> None:
            """Holds nothing."""

    class UnwritableJournal(MemoryRecorder):
        def event(self, kind: str, fields: Mapping[str, Any], *, repeated: bool = False) -> None:
            raise ZeroDivisionError("no journal")

    class UnreadableStreams:
        def look(self) -> Iterator[None]:
            raise ZeroDivisionError("no streams")

        def take(self) -> Sequence[DecodeSeen]:
            raise ZeroDivisionError("no streams")

    async def one_pass() -> None:
        metrics = RouterMetrics()
        client = LeanControl(own.config.engines, connections=1, connect_timeout_s=1.0)
        card = ModelCard("simulated", control=client, engines=tuple, timeout_s=1.0)
        stage = TelemetryStage(unreadable, metrics=metrics, card=card, lag=LoopLag(bool))
        record = PassRecord(own.monitoring, MemoryRecorder(), metrics)
        own.fleet.standings.require_checks()
        own.fleet.standings.eject("p0", "it refused connections", now=SystemClock().now())
        judge = Judge(
            own.fleet,
            gate=UnreadableGate(),
            recorder=UnwritableJournal(),
            metrics=metrics,
            clock=SystemClock(),
        )
        legs = legs_of(client, own.gate, budget_s=1.0)
        checks = HealthChecks(legs, sink=judge, streaming=bool)
        judge.prober = prober = prober_of(legs, judge)
        liveness = LivenessStage(checks, engines=own.fleet.engines, every=0, everyone=unreadable_ownership)
        stages = [
            ControllerStage(own.fleet, judge),
            HealthStage(own.fleet.pacing, judge),
            DrainsStage(UnreadableDrains()),
            RolloverStage(UnreadableStreams(), own.fleet.pacing, interval_s=1.0),
            ReadmissionStage(judge, prober),
            liveness,
            stage,
        ]
        await MonitorLoop(stages, record, gate=own.gate, clock=SystemClock(), interval_s=1.0).run_pass()
        for ended in stages:
            await ended.aclose()
        await client.aclose()

    own = Own(*specs("p0", "d0", "d1", "d2"))
    own.clock.now_s = SystemClock().now() - 1000.0
    slow(own, "d0")
    asyncio.run(one_pass())
    seen.show("state", state_document(own.views.state()))


def suspects(seen: Seen) -> None:
    """Engines that are suspected, held and out, as evidence makes them so."""
    own = Own()
    identity = Identity("a:1", "run-1", "simulated", own.fleet.engines)
    state = OwnState(own.fleet, own.totals, identity=identity, clock=Still())

    def show() -> None:
        seen.show("state", state_document(own.views.state()))
        document = to_fields(state.compose(epoch=0, holder=""))
        seen.show("handoff", handoff_document(HandoffView(document, mirrored=False)))

    def fail(iid: str, leg: Leg, failure: FailureClass, *, peer: str = "") -> None:
        own.fleet.step(LegFailed(iid, leg, failure, "way", f"{failure} of {iid}", peer=peer), NOW)
        show()

    for _ in range(3):
        fail("d0", Leg.DECODE, FailureClass.STREAM)
    own.fleet.step(LegSucceeded("d1", Leg.DECODE, "p0"), NOW)
    for start in (1.0, 2.0):
        own.fleet.step(ProcessSeen("p0", start), NOW)
    for now, pair in ((NOW, ("d1", "d0")), (NOW - 1, ("p0", "d1"))):
        own.fleet.step(EdgeProbed(*pair, ProbeOutcome.BAD), now)
        show()
    for _ in range(3):
        fail("d1", Leg.DECODE, FailureClass.CONNECTION)
    for name, detail in (("health", "no answer"), ("model", "no such model")):
        own.fleet.step(Validated("d1", (Check(name, "failed", detail),)), NOW)
        show()
    for _ in range(2):
        fail("p0", Leg.PREFILL, FailureClass.INFERENCE_STATUS)
    for seconds in (2.0, 3.0):
        reason = f"held for {seconds} s"
        own.fleet.standings.quarantine("d0", NOW + seconds, reason=reason, now=NOW)
        own.fleet.step(InferenceProbed("d0", ProbeOutcome.GOOD), NOW)
        own.fleet.standings.quarantine("d0", NOW + seconds, reason=reason, now=NOW)
        fail("p0", Leg.PREFILL, FailureClass.KV_HANDOFF)
    for _ in range(3):
        fail("d0", Leg.DECODE, FailureClass.STREAM, peer="p0")
    own.fleet.standings.checks.ask_across("d0", reason="two partners", consumer="p0", now=NOW)
    own.fleet.standings.hold("d0", "it fails with two partners", now=NOW)
    show()
    show_kv(own, show)
    show_drains(own, show)


def suspect_producer(seen: Seen) -> None:
    """Its KV handoffs fail on two consumers: it is held, and one of them is to pull from it."""
    own = Own(*specs("p0", "p1", "d0", "d1"))
    state = OwnState(
        own.fleet,
        own.totals,
        identity=Identity("a:1", "run-1", "simulated", own.fleet.engines),
        clock=Still(),
    )
    for number in range(6):
        failed = LegFailed(
            f"d{number % 2}",
            Leg.DECODE,
            FailureClass.INFERENCE_STATUS,
            "inference_status:500",
            "status 500",
            peer="p0",
            request=b"%d" % number,
        )
        own.fleet.step(failed, NOW)
        document = to_fields(state.compose(epoch=0, holder=""))
        seen.show("handoff", handoff_document(HandoffView(document, mirrored=False)))


def show_kv(own: Own, show: Callable[[], None]) -> None:
    """Handoffs are held, two are never pulled."""
    for tokens in (20, 20, 10):
        prefill = own.fleet.reserve_prefill(Demand(tokens), NOW)
        assert prefill is not None
        own.fleet.accounts.hand_off(prefill, tokens, since=NOW - tokens)
        show()
    own.fleet.accounts.expire(NOW + 15)
    show()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("documents")
    noted = Seen()
    with pytest.MonkeyPatch.context() as monkeypatch:
        alone(noted, folder)
        with_store(noted, folder, monkeypatch)
        without_answer(noted, folder)
        contracted(noted, folder)
    failing_stages(noted)
    suspects(noted)
    suspect_producer(noted)
    for own in chain(drift_story(), role_story()):
        noted.show("state", state_document(own.views.state()))
        noted.show("handoff", handoff_of(own))
    yield noted
    shutil.rmtree(folder, ignore_errors=True)


# --- what must have moved, and what must not -------------------------------------------------------


def resting_paths() -> dict[str, Any]:
    names = {STATE: "state", HANDOFF: "handoff", CLUSTER: "cluster", STANDBY_READY: "ready"}
    return {
        f"{names[document]}.{field.path}": field.value
        for document, fields in RESTING.items()
        for field in fields
    }


def rests(path: str) -> bool:
    return any(path == resting or path.startswith(f"{resting}.") for resting in resting_paths())


def test_every_field_outside_the_resting_table_changes(seen: Seen) -> None:
    still = {path for path in seen.constant() if not rests(path)} - FIXED
    assert still == set()


def test_every_resting_field_is_shown_and_keeps_its_resting_value(seen: Seen) -> None:
    assert {path for path in seen.paths() if rests(path)} <= seen.constant()
    for path in resting_paths():
        assert any(shown == path or shown.startswith(f"{path}.") for shown in seen.paths()), path
