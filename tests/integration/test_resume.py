"""`narwhal-serve` and the state that it finds at its start: what ends it with status 3, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.policy.handoff_codec import to_fields
from tests.support.fleets import fleet_document, write_fleet
from tests.support.processes import Process, python
from tests.support.settings import handoff_document

SAVED: dict[str, Any] = to_fields(handoff_document(e0="prefill", e1="decode", e2="decode"))


def start(folder: Path, *options: str) -> Process:
    folder.mkdir(exist_ok=True)
    fleet = write_fleet(folder, fleet_document(serving={"admission": "open"}))
    words = ("--fleet", fleet, "--port", "0", "--state-path", str(folder / "state.json"), *options)
    return Process(python("narwhal.cli.serve", *words))


def listens(process: Process) -> str:
    """Its output once it serves; then it ends cleanly."""
    try:
        process.wait_for(lambda lines: any(" listens on " in line for line in lines))
        assert process.stop() == 0
    finally:
        process.kill()
    return process.output


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (json.dumps(SAVED)[:-40], "is not a whole JSON document"),
        (json.dumps({**SAVED, "schema": "another"}), "schema must be 'narwhal.handoff', got 'another'"),
        (json.dumps({**SAVED, "schema_version": 2}), "schema_version must be 1, got 2"),
        (json.dumps({**SAVED, "ejected": "e1"}), "ejected must be a list of IDs"),
        (json.dumps({**SAVED, "lifecycle": {"records": None}}), "lifecycle.records must be a list, not None"),
    ],
)
def test_a_resume_from_what_cannot_be_read_ends_with_status_3_and_names_file_and_field(
    tmp_path: Path, saved: str, said: str
) -> None:
    (tmp_path / "state.json").write_text(saved, encoding="utf-8")
    process = start(tmp_path, "--resume")
    try:
        assert process.ended() == 3, process.output
    finally:
        process.kill()
    assert "Traceback" not in process.output
    assert f"{tmp_path / 'state.json'}" in process.output
    assert said in process.output


def test_without_resume_it_serves_and_says_what_it_leaves(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({**SAVED, "schema_version": 2}), encoding="utf-8")
    assert "the saved state is left: " in listens(start(tmp_path))
    damaged = {**SAVED, "lifecycle": {"wave": None, "records": None}}
    (tmp_path / "state.json").write_text(json.dumps(damaged), encoding="utf-8")
    assert "the saved state is damaged, and taken with care: " in listens(start(tmp_path))


def test_with_another_engine_set_an_uncontracted_fleet_keeps_its_configured_split(tmp_path: Path) -> None:
    document = to_fields(handoff_document(e0="decode", e1="prefill", x9="decode"))
    (tmp_path / "state.json").write_text(json.dumps(document), encoding="utf-8")
    assert "roles stay as configured" in listens(start(tmp_path, "--resume"))
    assert "starting fresh" in listens(start(tmp_path / "fresh", "--resume"))
