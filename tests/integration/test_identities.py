"""Identities of a contracted fleet in a whole router: at its start, in its sweeps. Real sidecars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.engines import engine_process
from tests.support.ports import free_port
from tests.support.processes import Process, eventually
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
