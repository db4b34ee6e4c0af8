"""No text that an engine or a sidecar tells ends a router, or gets raw into what it keeps and shows."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from narwhal.model.attestation import digest_of
from tests.support.engines import call, engine_process
from tests.support.odd_front import odd_front
from tests.support.processes import eventually
from tests.support.redis import on, running
from tests.support.router import Router, fleet_document, router_process
from tests.support.sidecars import contracted_fleet
from tests.support.upkeep_rig import post

QUICK: dict[str, Any] = {
    "controller": {"monitor_interval_s": 0.2},
    "recovery": {"liveness_every": 2, "readmit_every": 5},
}
HALF = b'{"version":"\\ud800"}'


def attested(version: str, url: str) -> bytes:
    """The sidecar's own document, of another version, with a digest that is right."""
    document = call("GET", url)
    document["engine"]["vllm_version"] = version
    return json.dumps({**document, "attestation_digest": digest_of(document)}).encode()


def lifecycle(router: Router) -> dict[str, Any]:
    document = router.get("/narwhal/lifecycle")
    assert isinstance(document, dict)
    return document


def test_half_a_character_in_a_sweep_ejects_its_engine_and_ends_no_router(tmp_path: Path) -> None:
    """Once in the engine's version, once in its sidecar's; with a store, so that everything is published."""
    with ExitStack() as stack:
        redis = stack.enter_context(running(on("redis-6.2"), tmp_path / "store"))
        engines = stack.enter_context(engine_process(4)).engines
        papers = contracted_fleet(engines, tmp_path / "papers", "--rebind", **QUICK)
        fleet, sidecars = stack.enter_context(papers)
        engine = stack.enter_context(odd_front(engines[2].port))
        beside = stack.enter_context(odd_front(int(sidecars[3].url.split(":")[2].split("/")[0])))
        fleet["engines"][2]["url"] = engine.url
        fleet["engines"][3]["attestation_url"] = f"{beside.url}/v1/attestation"
        words = ("--redis-url", f"redis://127.0.0.1:{redis.port}", "--cluster", "demo")
        router = stack.enter_context(router_process(tmp_path / "router", fleet, *words))
        eventually(router.ready, what="every identity is settled")

        engine.told["/version"] = HALF
        beside.told["/v1/attestation"] = attested("\ud800", sidecars[3].url)
        eventually(lambda: set(router.state()["ejected"]) >= {"e2", "e3"}, what="both are ejected")
        errors = [lifecycle(router)["engines"][iid]["error"] for iid in ("e2", "e3")]
        assert "/version tells a version that is no version: \\ud800" in errors[0]
        assert "engine.vllm_version is no version: \\ud800" in errors[1]
        assert router.get("/narwhal/handoff")["ejected"] == router.state()["ejected"]

        engine.told.clear()
        beside.told.clear()
        eventually(lambda: router.state()["ejected"] == [], what="both come back once mended")


def test_a_drain_of_an_engine_without_a_readable_version_is_refused_and_ends_no_router(
    tmp_path: Path,
) -> None:
    with engine_process(3) as engines, odd_front(engines.engines[2].port) as front:
        fleet = fleet_document(engines.engines, **QUICK)
        fleet["engines"][2]["url"] = front.url
        with router_process(tmp_path / "router", fleet) as router:
            eventually(router.ready, what="the router is ready")
            long = json.dumps({"version": "0.32.0\x1b[31m\n" + "x" * 200_000}).encode()
            for told in (HALF, long):
                front.told["/version"] = told
                status, answer = post(router, "drain", {"engines": ["e2"]})
                message = answer["error"]
                assert status == 503 and "which process it is could not be read" in message
                assert message.isprintable() and len(message) < 600
            front.told.clear()
            assert post(router, "drain", {"engines": ["e2"]})[0] == 200
