"""`narwhal-check` against simulated engines: a fit fleet, and each gate made to fail."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.check import main
from tests.support.engines import EngineProcess, engine_process
from tests.support.fleets import COMPLETE_CONTRACT
from tests.support.processes import LIVENESS_S, ROOT, Process, python
from tests.support.redis import LOGIN, USER, on, running
from tests.support.router import fleet_document, free_port
from tests.support.sidecars import CONTRACT, attestation_file, sidecar

PACE = ("--prefill", "0.002", "--interval", "0.004")
GATES = ["reach", "contract", "profile", "model", "pace", "tokenize", "produce", "consume", "slo"]
ROW = {
    "ttft_a": 0, "ttft_b": 1e-5, "ttft_c": 0.002, "tpot_slope": 1e-9, "tpot_intercept": 10.0,
    "decode_max_requests": 512, "decode_fit_mape": 0.01, "decode_cv_mape": 0.02,
}  # fmt: skip
"""Its interval is so long that a loaded machine keeps below it."""

Report = dict[str, dict[str, Any]]


def write_fleet(folder: Path, served: EngineProcess, **sections: Any) -> Path:
    generous = {"ttft_s": 20.0, "tpot_s": 5.0}
    profiles = {"path": str(folder / "profiles.json")}
    document = {**fleet_document(served.engines), "slo": generous, "profiles": profiles, **sections}
    path = folder / "fleet.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def write_store(folder: Path, *rows: dict[str, Any]) -> None:
    document = {"schema": "narwhal.profiles", "schema_version": 1, "profiles": rows}
    (folder / "profiles.json").write_text(json.dumps(document), encoding="utf-8")


def checked(fleet: Path, *options: str, status: int = 0) -> Report:
    """The findings of each gate by subject, with the gate's own outcome under `""`."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert main(["--fleet", str(fleet), "--json", "--repeats", "1", *options]) == status, told.getvalue()
    document = json.loads(told.getvalue())
    assert [gate["name"] for gate in document["gates"]] == GATES
    assert document["passed"] is (status == 0)
    return {
        gate["name"]: {"": gate["outcome"], **{one["subject"]: one for one in gate["findings"]}}
        for gate in document["gates"]
    }


def outcomes(report: Report) -> dict[str, str]:
    return {name: gate[""] for name, gate in report.items()}


def failure(report: Report, gate: str, subject: str) -> str:
    assert [name for name, outcome in outcomes(report).items() if outcome == "failed"] == [gate]
    assert report[gate][subject]["outcome"] == "failed"
    return str(report[gate][subject]["detail"])


@pytest.fixture(scope="module")
def rack() -> Iterator[EngineProcess]:
    with engine_process(2, *PACE) as engines:
        yield engines


@pytest.fixture
def served(rack: EngineProcess) -> EngineProcess:
    """Two engines without faults."""
    for engine in rack.engines:
        engine.reset()
    return rack


def test_the_command_tells_each_gate_and_ends_with_its_status(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[1].order("refuse")
    fleet = write_fleet(tmp_path, served)
    process = Process(python("narwhal.cli.check", "--fleet", str(fleet), "--repeats", "1"))
    assert process.ended() == 1
    assert process.lines[0].startswith("reach     failed")
    assert process.lines[-1] == "not fit to serve: reach failed"


def test_the_store_is_warned_of_and_fails_nothing(
    tmp_path: Path, served: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at under the shipped access list, with the environment that a router has."""
    fleet = write_fleet(tmp_path, served)
    assert store_findings(fleet) is None
    monkeypatch.setenv("STORE_PASSWORD", LOGIN.password)
    with running(on("redis-6.2"), tmp_path / "redis", appendonly="no") as redis:
        url = f"redis://{USER}@{redis.host}:{redis.port}"
        words = ["--redis-password-env", "STORE_PASSWORD"]
        (warning,) = store_findings(fleet, "--redis-url", url, *words) or []
        assert "set appendonly yes" in warning
        monkeypatch.setenv("NARWHAL_REDIS_URL", url)
        monkeypatch.setenv("NARWHAL_REDIS_MIN_REPLICAS", "2")
        assert any("the store has 0 replicas" in one for one in store_findings(fleet, *words) or [])
        monkeypatch.setenv("STORE_PASSWORD", "wrong")
        (refused,) = store_findings(fleet, *words) or []
        assert refused.startswith("no router can use this store: ")
    (away,) = store_findings(fleet, *words) or []
    assert away.startswith("no router can use this store: ")
    assert main(["--fleet", str(fleet), "--redis-url", "http://no"]) == 2


def store_findings(fleet: Path, *options: str) -> list[str] | None:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert main(["--fleet", str(fleet), "--json", "--no-kv", "--repeats", "1", *options]) == 0
    store = json.loads(told.getvalue())["store"]
    return None if store is None else list(store["warnings"])


def test_a_fit_fleet_passes_every_gate(tmp_path: Path, served: EngineProcess) -> None:
    write_store(tmp_path, {"iid": "e0", **ROW}, {"iid": "e1", **ROW})
    with ExitStack() as stack:
        rows = []
        for engine in served.engines:
            attested = stack.enter_context(sidecar(engine, attestation_file(tmp_path / engine.name)))
            rows.append({"iid": engine.name, "url": engine.url, "attestation_url": attested.url})
        fleet = write_fleet(tmp_path, served, engines=rows, engine_contract=COMPLETE_CONTRACT)
        report = checked(fleet)
    assert outcomes(report) == dict.fromkeys(GATES, "passed")
    assert set(report["consume"]) == {"", "e0 -> e1", "e1 -> e0"}
    assert report["slo"]["e0 -> e1"]["measured"]["ttft_s"] > 0
    assert served.idle()


def test_without_kv_nothing_is_handed_over(tmp_path: Path, served: EngineProcess) -> None:
    report = checked(write_fleet(tmp_path, served), "--no-kv")
    assert report["produce"][""] == report["consume"][""] == "skipped"
    assert set(report["slo"]) == {"", "e0", "e1"}
    assert all("prefill" not in engine.stats()["legs"] for engine in served.engines)


def test_an_engine_alone_is_judged_by_itself(tmp_path: Path, served: EngineProcess) -> None:
    row = {"iid": "e0", "url": served.engines[0].url}
    report = checked(write_fleet(tmp_path, served, engines=[row]))
    assert report["consume"]["fleet"]["detail"] == "no engine has another one to hand KV to"
    assert set(report["slo"]) == {"", "e0"}


def test_a_ring_crosses_every_engine(tmp_path: Path, served: EngineProcess) -> None:
    report = checked(write_fleet(tmp_path, served), "--ring")
    assert set(report["consume"]) == {"", "e0 -> e1", "e1 -> e0"}


def test_an_engine_that_is_away_is_left_out_of_what_follows(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[1].order("refuse")
    report = checked(write_fleet(tmp_path, served), status=1)
    assert "refused" in failure(report, "reach", "e1")
    assert report["model"]["e1"] == {**report["model"]["e1"], "outcome": "skipped", "detail": "not reached"}
    assert report["pace"]["e0"]["outcome"] == "passed"
    assert report["consume"]["e0 -> e1"]["outcome"] == "skipped"


def test_an_engine_that_is_not_the_contracts_fails(tmp_path: Path, served: EngineProcess) -> None:
    engine, other = served.engines
    with ExitStack() as stack:
        document = attestation_file(tmp_path, {**CONTRACT, "kv_heads": 4})
        attested = stack.enter_context(sidecar(engine, document))
        nobody = f"http://127.0.0.1:{free_port()}/v1/attestation"
        rows = [
            {"iid": "e0", "url": engine.url, "attestation_url": attested.url},
            {"iid": "e1", "url": other.url, "attestation_url": nobody},
        ]
        fleet = write_fleet(tmp_path, served, engines=rows, engine_contract=COMPLETE_CONTRACT)
        report = checked(fleet, "--no-kv", status=1)
    assert failure(report, "contract", "e0") == "kv_heads is 4, the contract wants 8"
    assert failure(report, "contract", "e1").startswith("the sidecar gives no answer: ")
    assert report["pace"]["e1"]["outcome"] == "passed", "the engine itself is well"


def test_a_contract_that_leaves_things_open_is_a_warning(tmp_path: Path, served: EngineProcess) -> None:
    with sidecar(served.engines[0], attestation_file(tmp_path)) as attested:
        row = {"iid": "e0", "url": served.engines[0].url, "attestation_url": attested.url}
        contract = {"vllm_version": "0.32.0"}
        fleet = write_fleet(tmp_path, served, engines=[row], engine_contract=contract)
        report = checked(fleet, "--no-kv")
    assert report["contract"]["e0"]["detail"].endswith("3 fields as in the contract")
    assert "not complete" in report["contract"]["fleet"]["warning"]


def test_an_engine_whose_core_stands_still_is_waited_for_once(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[1].order("core_stopped")
    fleet = write_fleet(tmp_path, served, serving={"prefill_timeout_s": 1.0, "admission": "open"})
    report = checked(fleet, status=1)
    assert failure(report, "pace", "e1") == "no first token in time (1 s)"
    assert report["tokenize"]["e1"]["outcome"] == "skipped"
    assert report["consume"]["e0 -> e1"]["detail"] == "e1 not reached"


def test_profiles_that_are_unfit_or_missing_fail(tmp_path: Path, served: EngineProcess) -> None:
    write_store(tmp_path, {"iid": "e0", **ROW, "decode_fit_mape": 0.07, "decode_max_requests": 16})
    fleet = write_fleet(tmp_path, served)
    report = checked(fleet, "--no-kv", status=1)
    assert failure(report, "profile", "e0") == (
        "decode_fit_mape is 0.0700, profiles.max_decode_fit_mape is 0.05; "
        "decode was measured up to 16 requests, its share of serving.max_connections is 256"
    )
    assert "has no row for it" in failure(report, "profile", "e1")
    (tmp_path / "profiles.json").write_text("{}")
    assert "profiles must be a list" in failure(checked(fleet, "--no-kv", status=1), "profile", "fleet")


def test_a_digest_that_changed_is_a_warning(tmp_path: Path, served: EngineProcess) -> None:
    write_store(tmp_path, *({"iid": iid, **ROW, "generation_digest": "sha256:0"} for iid in ("e0", "e1")))
    report = checked(write_fleet(tmp_path, served), "--no-kv")
    assert "generates another text" in report["profile"]["e0"]["warning"]


def test_an_engine_of_another_model_fails(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[0].order("wrong_model", leg="models")
    report = checked(write_fleet(tmp_path, served), "--no-kv", status=1)
    assert failure(report, "model", "e0") == "serves another-model, the fleet's model is simulated"


def test_an_engine_that_is_slower_than_its_profile_fails(tmp_path: Path, served: EngineProcess) -> None:
    fast = {**ROW, "tpot_intercept": 0.0001}
    write_store(tmp_path, {"iid": "e0", **fast}, {"iid": "e1", **ROW})
    report = checked(write_fleet(tmp_path, served), "--no-kv", status=1)
    assert "its profile says 0.10 ms: over 2 times (recovery.health.drift_band)" in failure(
        report, "pace", "e0"
    )


def test_a_stream_that_is_cut_fails_where_it_is_tried(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[0].order("abort", leg="probe", after=3)
    report = checked(write_fleet(tmp_path, served), "--no-kv", status=1)
    assert report["pace"]["e0"]["detail"] == "finish reason 'abort'"


def test_a_tokenizer_that_does_not_answer_fails(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[0].order("status", leg="tokenize", status=500, message="no tokenizer")
    report = checked(write_fleet(tmp_path, served), "--no-kv", status=1)
    assert failure(report, "tokenize", "e0") == "status 500: no tokenizer"


def test_a_handoff_that_may_not_be_sent_fails_both_kv_gates(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[0].order("handoff", leg="prefill", variant="no_host")
    report = checked(write_fleet(tmp_path, served), status=1)
    said = "kv_transfer_params.remote_host is not a nonempty string"
    assert report["produce"]["e0"]["detail"] == said
    assert report["consume"]["e0 -> e1"]["detail"] == f"e0: {said}"
    assert report["slo"][""] == "skipped"


def test_a_decode_that_fails_names_the_engine_of_the_edge(tmp_path: Path, served: EngineProcess) -> None:
    served.engines[1].order("error_in_200", leg="decode")
    report = checked(write_fleet(tmp_path, served), status=1)
    assert failure(report, "consume", "e0 -> e1").startswith("e1: an error object in the stream: ")


def test_targets_that_are_missed_fail(tmp_path: Path, served: EngineProcess) -> None:
    fleet = write_fleet(tmp_path, served, slo={"ttft_s": 1e-6, "tpot_s": 5.0})
    said = failure(checked(fleet, status=1), "slo", "e0 -> e1")
    assert said.startswith("ttft_s ")
    assert "slo.ttft_s is 0.001 ms" in said


def test_the_engines_key_opens_every_gate_and_is_told_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sesame-7f")
    with engine_process(2, *PACE, "--api-key-env", "ENGINE_KEY") as served:
        keyed = write_fleet(tmp_path, served, engine={"engine_api_key_env": "ENGINE_KEY"})
        report = checked(keyed)
        assert "sesame-7f" not in json.dumps(report)
        assert "failed" not in outcomes(report).values()
        bare = write_fleet(tmp_path, served)
        report = checked(bare, status=1)
        assert report["model"]["e0"]["detail"] == "status 401: Unauthorized"


def test_a_reader_that_has_gone_is_no_traceback(tmp_path: Path, served: EngineProcess) -> None:
    words = python("narwhal.cli.check", "--fleet", str(write_fleet(tmp_path, served)), "--no-kv")
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(LIVENESS_S) == 1


def test_a_silent_engine_is_left_after_a_short_while_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`serving.prefill_timeout_s` is for the largest prompt of a client."""
    monkeypatch.setattr("narwhal.runtime.check.PATIENCE_S", 0.6)
    monkeypatch.setattr("narwhal.runtime.check.TICK_S", 0.2)
    with engine_process(2, *PACE) as served:
        served.engines[1].order("silent_first_token")
        report = checked(write_fleet(tmp_path, served), status=1)
    assert "0.6 s" in report["pace"]["e1"]["detail"]
    assert "narwhal-check: pace 1/2 (" in capsys.readouterr().err
