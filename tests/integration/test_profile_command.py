"""`narwhal-profile` on simulated engines: a whole run, one that was stopped, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.config.load import load_fleet
from narwhal.config.profiles import read_profiles
from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import Process, python
from tests.support.router import fleet_document

SMALL = (
    "--repeats", "1", "--max-requests", "2", "--prompt-tokens", "40,80,160,320", "--context-tokens", "60,120",
)  # fmt: skip
POINTS = 4 + 2 * 2
PACE = ("--prefill", "0.001", "--interval", "0.002")


def write_fleet(folder: Path, served: EngineProcess, **sections: Any) -> Path:
    document = fleet_document(served.engines, profiles={"path": str(folder / "profiles.json")}, **sections)
    path = folder / "fleet.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def ran(fleet: Path, *options: str, status: int = 0) -> str:
    process = Process(python("narwhal.cli.profile", "--fleet", str(fleet), *SMALL, *options))
    assert process.ended() == status, process.output
    assert "Traceback" not in process.output
    return process.output


def row_count(folder: Path) -> int:
    return len((folder / "profiles.samples.jsonl").read_text().splitlines()) - 1


def test_a_run_writes_a_store_that_the_router_loads(tmp_path: Path) -> None:
    with engine_process(2, *PACE) as served:
        fleet = write_fleet(tmp_path, served)
        output = ran(fleet)
        assert "e1 8/8: decode of 2 x 120 tokens" in output
        config = load_fleet(str(fleet), {})
        reading = read_profiles(config.profiles.path, config.engines)
        assert reading.warnings == ()
        assert reading.engine_auth == "boundary"
        for profile in reading.profiles.values():
            assert (profile.decode_min_requests, profile.decode_max_requests) == (1, 2)
            assert profile.kv_capacity_tokens == 65536 * 32
            assert profile.generation_digest is not None
            assert profile.tpot_intercept > 0
        assert row_count(tmp_path) == 2 * POINTS
        assert served.idle()


def test_a_stopped_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    with engine_process(1, *PACE) as served:
        fleet = write_fleet(tmp_path, served)
        ran(fleet)
        samples = tmp_path / "profiles.samples.jsonl"
        kept = samples.read_text().splitlines()[: 1 + POINTS - 2]
        samples.write_text("\n".join(kept) + '\n{"iid": "e0", "pha')
        # The row stays: samples that are not those it was made of tell of a run that was stopped.
        output = ran(fleet)
        assert "e0 1/2: " in output
        assert "e0 2/2: " in output
        assert row_count(tmp_path) == POINTS


def test_samples_that_a_row_was_not_made_of_ask_for_no_further_run(tmp_path: Path) -> None:
    """Of another plan here; of another vLLM version it is the same."""
    with engine_process(1, *PACE) as served:
        fleet = write_fleet(tmp_path, served)
        ran(fleet, "--prompt-tokens", "50,90,170,330")
        (tmp_path / "profiles.json").unlink()
        assert "4 samples of another vLLM version or plan are not used" in ran(fleet)
        assert row_count(tmp_path) == POINTS + 4
        output = ran(fleet)
        assert "e0 has a row in" in output
        assert "are not used" not in output


def test_an_overwrite_that_ended_before_its_first_sample_goes_on(tmp_path: Path) -> None:
    with engine_process(2, *PACE) as served:
        fleet = write_fleet(tmp_path, served)
        ran(fleet)
        served.engines[0].order("wrong_model", leg="models")
        assert "e0 has no new row" in ran(fleet, "--overwrite", "--only", "e0", status=1)
        served.engines[0].clear()
        output = ran(fleet)
        assert "e0 8/8: " in output
        assert "e1 has a row in" in output
        assert "e0 has a row in" in ran(fleet)


def test_an_engine_with_a_row_is_measured_again_only_on_demand(tmp_path: Path) -> None:
    with engine_process(2, *PACE) as served:
        fleet = write_fleet(tmp_path, served)
        ran(fleet, "--only", "e0")
        assert row_count(tmp_path) == POINTS
        output = ran(fleet, "--only", "e0")
        assert "e0 has a row in" in output
        assert "decode of" not in output
        assert "e0 8/8: " in ran(fleet, "--only", "e0", "--overwrite")
        assert row_count(tmp_path) == POINTS
        document = json.loads("{" + ran(fleet, "--json").split("\n{\n", 1)[1])
        assert document["skipped"] == ["e0"]
        assert [row["iid"] for row in document["profiles"]] == ["e1"]


def test_a_fleet_without_tokenize_is_measured_too(tmp_path: Path) -> None:
    with engine_process(1, *PACE) as served:
        fleet = write_fleet(tmp_path, served, engine={"tokenize": False})
        ran(fleet)
        assert "tokenize" not in served.engines[0].stats()["legs"]
        (row,) = json.loads((tmp_path / "profiles.json").read_text())["profiles"]
        assert 40 <= row["decode_min_kv_tokens"] <= 150


def test_one_engine_that_fails_does_not_keep_the_others_off(tmp_path: Path) -> None:
    with engine_process(2, *PACE) as served:
        fleet = write_fleet(tmp_path, served)
        served.engines[0].order("wrong_model", leg="models")
        output = ran(fleet, status=1)
        assert "e0 has no new row: e0 serves another-model, the fleet's model is simulated" in output
        store = json.loads((tmp_path / "profiles.json").read_text())
        assert [row["iid"] for row in store["profiles"]] == ["e1"]


def test_a_batch_that_the_engine_does_not_take_at_once_is_named(tmp_path: Path) -> None:
    with engine_process(1, *PACE, "--max-num-seqs", "1", "--max-model-len", "400") as served:
        fleet = write_fleet(tmp_path, served)
        output = ran(fleet, "--prompt-tokens", "40,60,80,100", status=1)
        assert "only 1 requests decoded at once" in output
        served.becomes_idle()


def test_the_engines_key_is_sent_and_said_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "opens")
    with engine_process(1, *PACE, "--api-key-env", "ENGINE_KEY") as served:
        fleet = write_fleet(tmp_path, served, engine={"engine_api_key_env": "ENGINE_KEY"})
        output = ran(fleet)
        assert "opens" not in output
        store = json.loads((tmp_path / "profiles.json").read_text())
        assert store["meta"]["engine_auth"] == "engine-credential"
        assert "opens" not in json.dumps(store) + (tmp_path / "profiles.samples.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "e7"], "--only e7: the fleet has e0"),
        (["--only", ""], "--only '': the fleet has e0"),
        (["--only", "e0,"], "--only '': the fleet has e0"),
        (["--prompt-tokens", ""], "--prompt-tokens must be whole numbers"),
        (["--context-tokens", ""], "--context-tokens must be whole numbers"),
        (["--samples", ""], "--samples must name a file"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--prompt-tokens", "64,x"], "--prompt-tokens must be whole numbers"),
        (["--prompt-tokens", "64,512"], "--prompt-tokens must be 4 lengths or more, got 2"),
        (["--context-tokens", "64"], "got 1 lengths in batches of 1, 2"),
        (["--max-requests", "-1"], "--max-requests must be at least 0"),
    ],
)
def test_wrong_usage_is_status_2(tmp_path: Path, options: list[str], said: str) -> None:
    document = fleet_document([])
    document["engines"] = [{"iid": "e0", "url": "http://127.0.0.1:1"}]
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps(document))
    assert said in ran(fleet, *options, status=2)
