"""What `narwhal-check` prints without asking an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.check import lines_of, main, store_lines, summary
from narwhal.config.load import read_fleet
from narwhal.measure.gates.verdict import GateReport, failed, passed, skipped


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


def test_the_example_is_a_fleet_file_with_a_complete_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(printed(capsys, "--print-example-config")), encoding="utf-8")
    config = read_fleet(str(path), {}).config
    assert config.contract_complete
    assert [spec.iid for spec in config.engines] == ["p0", "p1", "d0", "d1"]


def test_contract_versions_name_engine_builds_and_documents(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "--print-contract-versions")
    assert told["engines"][0]["vllm_version"] == "0.32.0"
    assert told["documents"]["narwhal.fleet"] == 1
    assert {"narwhal.profiles", "narwhal.handoff", "narwhal.attestation"} < set(told["documents"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--fleet PATH is required"),
        (["--fleet", "/nowhere.json"], "/nowhere.json: cannot be read"),
        (["--fleet", "/nowhere.json", "--repeats", "0"], "--repeats must be at least 1"),
    ],
)
def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_gate_is_told_with_a_line_for_each_finding() -> None:
    report = GateReport(
        "model", (passed("e0", "serves tiny"), failed("e1", "serves huge"), skipped("e2", "not reached"))
    )
    assert lines_of(report) == [
        "model     failed",
        "    e0: serves tiny",
        "  ! e1: serves huge",
        "  - e2: not reached",
    ]
    warned = GateReport("model", (passed("fleet", warning="lengths differ"), passed("e0", "x", warning="y")))
    assert lines_of(warned)[1:] == ["    fleet: warning: lengths differ", "    e0: x; warning: y"]


def test_the_last_line_is_the_verdict() -> None:
    good, bad = GateReport("reach", (passed("e0"),)), GateReport("model", (failed("e0", "no"),))
    away = GateReport("contract", (skipped("fleet", "none"),))
    assert summary([good, bad, away]) == "not fit to serve: model failed"
    assert summary([good, away]) == "no gate failed of 9, contract skipped"


def test_a_store_is_told_only_where_one_was_named() -> None:
    assert store_lines(None) == []
    assert store_lines(()) == ["store     looked at"]
    assert store_lines(("set appendonly yes",)) == ["store     looked at", "    warning: set appendonly yes"]
