"""Identities of a contracted fleet in a whole router: at its start, in its sweeps. Real sidecars."""

from __future__ import annotations

import urllib.error
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import RemoteEngine, call, engine_process
from tests.support.odd_front import odd_front
from tests.support.ports import free_port
from tests.support.processes import Process, eventually
from tests.support.redis import on, running
from tests.support.router import Router, router_process
from tests.support.sidecars import (
    CONTRACT,
    attest_command,
    attestation_file,
    contracted_fleet,
)
from tests.support.upkeep_rig import post

QUICK: dict[str, Any] = {
    "controller": {"monitor_interval_s": 0.2},
    "recovery": {"liveness_every": 2, "readmit_every": 5},
}
LEASE = ("--lease-ttl", "3", "--lease-renew-interval", "0.3", "--lease-safety-margin", "0.5")


def events(router: Router, kind: str) -> list[dict[str, Any]]:
    return [row for row in router.journal() if kind in (row.get("event"), row.get("kind"))]


def lifecycle(router: Router) -> dict[str, Any]:
    document = router.get("/narwhal/lifecycle")
    assert isinstance(document, dict)
    return document


def test_a_start_waits_for_every_identity_and_a_sweep_finds_who_changed(tmp_path: Path) -> None:
    with (
        engine_process(3) as engines,
        contracted_fleet(engines.engines, tmp_path / "papers", "--rebind", **QUICK) as (fleet, sidecars),
    ):
        last = engines.engines[2]
        late = free_port()
        fleet["engines"][2]["attestation_url"] = f"http://127.0.0.1:{late}/v1/attestation"
        sidecars[2].process.stop()
        with router_process(tmp_path / "router", fleet, ready=False) as router:
            eventually(lambda: len(lifecycle(router)["process_starts"]) == 2, what="two are settled")
            ready = router.get("/ready")
            assert (ready["reason"], ready["control_ready"]) == ("awaiting engine identity", True)
            assert router.get("/health")["available_instances"] == 0
            assert router.get("/v1/models")["data"][0]["max_model_len"] == 32768
            eventually(lambda: bool(events(router, "identity_awaited")), what="why is in the journal")
            why = events(router, "identity_awaited")[0]["reason"]
            assert why.startswith("the sidecar gives no answer")
            rows = lifecycle(router)["engines"]
            assert (rows["e0"]["error"], rows["e2"]["error"]) == ("", f"its identity is awaited: {why}")

            command = attest_command(last, tmp_path / "papers" / "attestation.json", "--rebind")
            beside = Process([*command, "--port", str(late)])
            try:
                eventually(router.ready, what="its sidecar is there")
                before = lifecycle(router)["process_starts"]
                assert sorted(before) == [engine.name for engine in engines.engines]

                last.order("restart", down_s=0.0)
                eventually(
                    lambda: lifecycle(router)["process_starts"][last.name] > before[last.name],
                    what="an individual restart is accepted",
                )
            finally:
                beside.stop()
            eventually(lambda: last.name in router.state()["ejected"], what="nobody vouches for it any more")
            eventually(lambda: bool(events(router, "identity_failed")), what="why is in the journal")
            assert "not verified 2 times in a row" in events(router, "identity_failed")[0]["reason"]
            assert router.ready()


def test_a_resume_that_meets_another_process_holds_the_fleet_until_a_wave(tmp_path: Path) -> None:
    with (
        engine_process(2) as engines,
        contracted_fleet(engines.engines, tmp_path / "papers", "--rebind", **QUICK) as (fleet, sidecars),
    ):
        with router_process(tmp_path / "router", fleet) as router:
            before = lifecycle(router)["process_starts"]
        engines.engines[1].order("restart", down_s=0.0)
        with router_process(tmp_path / "router", fleet, "--resume", ready=False) as router:
            eventually(
                lambda: router.get("/ready")["reason"].startswith("whole-wave restart required: e1 is not"),
                what="the fleet is held",
            )
            assert router.get("/ready")["control_ready"]
            assert lifecycle(router)["process_starts"] == before
        with router_process(tmp_path / "router", fleet, "--resume", ready=False) as router:
            assert "whole-wave restart required" in router.get("/ready")["reason"], "it travels"
            assert post(router, "drain", {"wave": True})[0] == 200
            eventually(lambda: lifecycle(router)["wave"]["ready_to_stop"], what="it may be stopped")
            for engine in engines.engines:
                engine.order("restart", down_s=0.0)
            eventually(lambda: post(router, "readmit", {"wave": True})[0] == 200, what="the wave is back")
            assert router.ready()
            after = lifecycle(router)["process_starts"]
            assert all(after[iid] > start for iid, start in before.items())
        for sidecar in sidecars:
            sidecar.process.stop()
        with router_process(tmp_path / "router", fleet, ready=False) as router:
            eventually(
                lambda: router.get("/ready")["reason"] == "awaiting engine identity", what="nobody vouches"
            )
            assert lifecycle(router)["process_starts"] == after, "also without --resume"


def served(engines: Sequence[RemoteEngine]) -> list[int]:
    """Legs of clients that each engine has had; probes have names of their own."""
    told = [engine.stats()["legs"] for engine in engines]
    return [legs.get("prefill", 0) + legs.get("decode", 0) for legs in told]


def test_a_takeover_with_an_old_document_asks_every_engine_for_health_and_identity_first(
    tmp_path: Path,
) -> None:
    """Too old here: of any age. One engine's sidecar tells nothing, another's health is bad meanwhile."""
    patient = {**QUICK, "recovery": {"liveness_every": 2, "liveness_misses": 1000}}
    with ExitStack() as stack:
        store = stack.enter_context(running(on("redis-server"), tmp_path / "store"))
        engines = stack.enter_context(engine_process(3)).engines
        papers = contracted_fleet(engines, tmp_path / "papers", "--rebind", **patient)
        fleet, sidecars = stack.enter_context(papers)
        beside = stack.enter_context(odd_front(int(sidecars[2].url.split(":")[2].split("/")[0])))
        fleet["engines"][2]["attestation_url"] = f"{beside.url}/v1/attestation"
        words = ("--redis-url", f"redis://127.0.0.1:{store.port}", *LEASE)
        first = stack.enter_context(router_process(tmp_path / "first", fleet, *words))
        careful = ("--standby", "--standby-max-handoff-age", "0")
        second = stack.enter_context(router_process(tmp_path / "second", fleet, *words, *careful))
        accepted = lifecycle(first)["process_starts"]
        assert sorted(accepted) == ["e0", "e1", "e2"]
        eventually(lambda: lifecycle(second)["process_starts"] == accepted, what="the standby mirrors")

        beside.told["/v1/attestation"] = b"{}"
        engines[1].order("status", leg="health", status=503)
        before = served(engines)
        first.process.stop()
        eventually(lambda: "identity" in lifecycle(second)["engines"]["e2"]["error"], what="e2 is asked")
        eventually(lambda: second.get("/ready")["control_ready"], what="the standby took over")
        assert second.get("/ready")["reason"] == "awaiting engine identity"
        assert second.state()["breaker"]["verifying"] == ["e0", "e1", "e2"]
        assert second.get("/health")["available_instances"] == 0
        assert [row["accepts_new"] for row in lifecycle(second)["engines"].values()] == [False] * 3
        with pytest.raises(urllib.error.HTTPError, match="503"):
            call("POST", f"{second.url}/v1/completions", {"prompt": "a few words", "max_tokens": 2})
        assert served(engines) == before, "nobody was given work"

        beside.told.clear()
        eventually(lambda: second.state()["breaker"]["verifying"] == ["e1"], what="two are healthy")
        eventually(second.ready, what="every identity is settled")
        rows = lifecycle(second)["engines"]
        assert {iid for iid, row in rows.items() if row["accepts_new"]} == {"e0", "e2"}
        call("POST", f"{second.url}/v1/completions", {"prompt": "a few words", "max_tokens": 2})
        assert served(engines)[1] == before[1], "its health is not known to be good"
        engines[1].clear()
        eventually(
            lambda: all(row["accepts_new"] for row in lifecycle(second)["engines"].values()),
            what="all three take requests",
        )
        assert lifecycle(second)["process_starts"] == accepted
        assert second.state()["ejected"] == []


def test_an_engine_unlike_its_contract_is_out_with_the_fields_name(tmp_path: Path) -> None:
    other = attestation_file(tmp_path / "other", {**CONTRACT, "kv_heads": 4})
    with (
        engine_process(3) as engines,
        contracted_fleet(engines.engines, tmp_path / "papers", **QUICK) as (fleet, _),
    ):
        port = free_port()
        beside = Process([*attest_command(engines.engines[2], other), "--port", str(port)])
        fleet["engines"][2]["attestation_url"] = f"http://127.0.0.1:{port}/v1/attestation"
        try:
            with router_process(tmp_path / "router", fleet) as router:
                name = engines.engines[2].name
                row = lifecycle(router)["engines"][name]
                assert "kv_heads is 4, the contract wants 8" in row["error"]
                assert router.state()["ejected"] == [name]
                eventually(lambda: bool(lifecycle(router)["engines"][name]["checks"]), what="it is validated")
                checks = lifecycle(router)["engines"][name]["checks"]
                assert [check["name"] for check in checks] == ["health", "attestation"]
        finally:
            beside.stop()
