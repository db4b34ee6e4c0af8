"""`narwhal-attest` beside a simulated engine, and what the router's side makes of it."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from narwhal.engine.attestation import EngineIdentities, sidecar_control
from narwhal.engine.control import LeanControl
from narwhal.errors import AttestationInvalid, EngineUnreachable
from narwhal.model.attestation import digest_of
from narwhal.model.engine import EngineSpec
from narwhal.policy.identity import unlike
from tests.support.engines import RemoteEngine, call, engine_process
from tests.support.processes import LIVENESS_S, Process, eventually
from tests.support.router import free_port
from tests.support.settings import engine_settings
from tests.support.sidecars import CONTRACT, attest_command, attestation_file, sidecar


def answered(url: str) -> tuple[int, Any]:
    try:
        return 200, call("GET", url)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def status(url: str) -> int:
    return answered(url)[0]


def restart(engine: RemoteEngine) -> None:
    """A new process on the same port, with a later start (it has 10 ms steps)."""
    before = engine.stats()["process_start"]

    def risen() -> bool:
        engine.order("restart")
        return bool(engine.stats()["process_start"] != before)

    eventually(risen, what="a new process start")
    eventually(lambda: status(f"{engine.url}/version") == 200, what="the engine back")


def with_identities(spec: EngineSpec, scene: Callable[[EngineIdentities], Awaitable[None]]) -> None:
    async def main() -> None:
        control = LeanControl([spec], connections=2, connect_timeout_s=5.0)
        sidecars = sidecar_control([spec], engine_settings())
        identities = EngineIdentities([spec], control, sidecars=sidecars)
        try:
            await scene(identities)
        finally:
            await identities.aclose()
            await control.aclose()

    uvloop.run(main())


def test_the_document_is_whole_and_lost_with_the_process(tmp_path: Path) -> None:
    with engine_process(1) as served:
        (engine,) = served.engines
        with sidecar(engine, attestation_file(tmp_path)) as attested:
            code, document = answered(attested.url)
            assert code == 200
            assert document["contract"] == CONTRACT
            assert set(document["sources"]) == set(CONTRACT)
            assert document["engine"] == {
                "vllm_version": "0.32.0",
                "process_start_time_seconds": engine.stats()["process_start"],
            }
            assert document["attestation_digest"] == digest_of(document)
            base = attested.url.removesuffix("/v1/attestation")
            assert [status(f"{base}{path}") for path in ("/health", "/elsewhere")] == [200, 404]

            restart(engine)
            for path in ("/v1/attestation", "/health", "/elsewhere"):
                code, body = answered(f"{base}{path}")
                assert code == 503
                assert "restart this sidecar" in body["error"]["message"]
            assert attested.process.stop() == 0
            assert attested.process.output.count("503 from now on") == 1, "all it has said is read at its end"


def test_an_engine_that_is_silent_for_a_while_is_not_lost(tmp_path: Path) -> None:
    with engine_process(1) as served:
        (engine,) = served.engines
        with sidecar(engine, attestation_file(tmp_path), "--timeout-s", "0.3") as attested:
            engine.order("hang", leg="version")
            code, body = answered(attested.url)
            assert (code, body["error"]["message"]) == (503, "the engine gave no answer in 0.3 s")
            engine.clear()
            assert status(attested.url) == 200


def test_rebind_follows_the_engine_to_its_next_process(tmp_path: Path) -> None:
    with engine_process(1) as served:
        (engine,) = served.engines
        with sidecar(engine, attestation_file(tmp_path), "--rebind") as attested:
            before = answered(attested.url)[1]["engine"]["process_start_time_seconds"]
            restart(engine)
            after = answered(attested.url)[1]["engine"]["process_start_time_seconds"]
            assert after == engine.stats()["process_start"] != before


def test_a_sidecar_of_another_version_does_not_start(tmp_path: Path) -> None:
    with engine_process(1, "--engine-version", "0.31.0") as served:
        process = Process(attest_command(served.engines[0], attestation_file(tmp_path)))
        assert process.ended() == 1
        assert "the engine runs vLLM 0.31.0, the document is about 0.32.0" in process.output
        assert "Traceback" not in process.output


def test_a_sidecar_without_an_engine_does_not_start(tmp_path: Path) -> None:
    nobody = RemoteEngine("e0", f"http://127.0.0.1:{free_port()}", "")
    process = Process(attest_command(nobody, attestation_file(tmp_path)))
    assert process.ended() == 1
    assert "the engine gives no answer" in process.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--timeout-s", "nan"], "--timeout-s must be finite seconds > 0"),
        (["--engine-api-key-env", "NO_SUCH_KEY"], "--engine-api-key-env names NO_SUCH_KEY, which is not set"),
        (["--engine-base", "ftp://x"], "--engine-base must be a URL"),
        (["--document", "/nowhere.json"], "/nowhere.json: cannot be read"),
    ],
)
def test_wrong_usage_ends_with_status_2(tmp_path: Path, options: list[str], said: str) -> None:
    nobody = RemoteEngine("e0", "http://127.0.0.1:1", "")
    process = Process(attest_command(nobody, attestation_file(tmp_path), *options))
    assert process.ended() == 2
    assert said in process.output


def test_the_router_finds_contract_and_process_right_and_then_wrong(tmp_path: Path) -> None:
    with engine_process(1) as served:
        (engine,) = served.engines
        with sidecar(engine, attestation_file(tmp_path), "--rebind") as attested:
            spec = EngineSpec("e0", engine.url, attestation_url=attested.url)

            async def scene(identities: EngineIdentities) -> None:
                bound = await identities.attestation("e0", timeout_s=LIVENESS_S)
                live = await identities.identity("e0", timeout_s=LIVENESS_S)
                assert unlike(CONTRACT, bound, live=live) == ()
                assert unlike({**CONTRACT, "kv_heads": 4}, bound, live=live) == (
                    "kv_heads is 8, the contract wants 4",
                )
                engine.order("process_start", leg="metrics", shift=0.01)
                live = await identities.identity("e0", timeout_s=LIVENESS_S)
                (said,) = unlike(CONTRACT, bound, live=live)
                assert said.startswith("the engine's process started at")

            with_identities(spec, scene)


def test_a_sidecar_that_refuses_or_is_gone_is_told_apart(tmp_path: Path) -> None:
    with engine_process(1) as served:
        (engine,) = served.engines
        with sidecar(engine, attestation_file(tmp_path)) as attested:
            restart(engine)
            spec = EngineSpec("e0", engine.url, attestation_url=attested.url)

            async def refused(identities: EngineIdentities) -> None:
                with pytest.raises(AttestationInvalid, match=r"answers 503: .*restart this sidecar"):
                    await identities.attestation("e0", timeout_s=LIVENESS_S)

            with_identities(spec, refused)

    async def gone(identities: EngineIdentities) -> None:
        with pytest.raises(EngineUnreachable):
            await identities.attestation("e0", timeout_s=LIVENESS_S)

    with_identities(replace(spec, attestation_url=f"http://127.0.0.1:{free_port()}"), gone)


def test_the_engines_key_goes_to_the_engine_and_never_to_the_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "opens")
    with engine_process(2) as served:
        engine, standing_in = served.engines
        with sidecar(engine, attestation_file(tmp_path), "--engine-api-key-env", "ENGINE_KEY") as attested:
            assert status(attested.url) == 200
            seen = engine.stats(requests=True)["requests"][-1]
            assert seen["headers"]["authorization"] == "Bearer opens"
            assert seen["headers"]["x-request-id"]
            assert "opens" not in attested.process.output

        # Another engine in the sidecar's place records what the router's side sends there.
        spec = EngineSpec("e0", engine.url, attestation_url=f"{standing_in.url}/version")

        async def scene() -> None:
            control = LeanControl([spec], connections=2, connect_timeout_s=5.0, api_key="opens")
            sidecars = sidecar_control([spec], engine_settings())
            identities = EngineIdentities([spec], control, sidecars=sidecars)
            with pytest.raises(AttestationInvalid, match="schema must be"):
                await identities.attestation("e0", timeout_s=LIVENESS_S)
            await identities.identity("e0", timeout_s=LIVENESS_S)
            await identities.aclose()
            await control.aclose()

        uvloop.run(scene())
        assert "authorization" not in standing_in.stats(requests=True)["requests"][-1]["headers"]
        assert engine.stats(requests=True)["requests"][-1]["headers"]["authorization"] == "Bearer opens"
