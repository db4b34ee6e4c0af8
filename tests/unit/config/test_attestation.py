"""The document that a sidecar is started with: every problem, in one go."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from narwhal.config.attestation import AttestedDocument, read_document
from narwhal.config.schema import fields_of
from narwhal.errors import ConfigError
from tests.support.fleets import COMPLETE_CONTRACT


def document(**changes: Any) -> dict[str, Any]:
    contract = {**COMPLETE_CONTRACT, "enforce_handshake_compat": True, "connector": "NixlConnector"}
    whole = {
        "schema": "narwhal.attestation",
        "schema_version": 1,
        "contract": contract,
        "sources": dict.fromkeys(contract, "vllm serve's arguments"),
    }
    for name, value in changes.items():
        place, _, field = name.partition("__")
        if field:
            whole[place][field] = value
        else:
            whole[place] = value
    return whole


def read(folder: Path, content: Any) -> AttestedDocument:
    path = folder / "attestation.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_document(str(path))


def test_a_whole_document_is_read(tmp_path: Path) -> None:
    attested = read(tmp_path, document())
    assert attested.version == "0.32.0"
    assert attested.contract["cross_layers_blocks"] is False
    assert set(attested.sources) == set(attested.contract)


def test_the_documented_example_is_whole(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "attestation.md"
    example = re.search(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert example
    attested = read(tmp_path, example[1])
    assert set(attested.contract) == set(fields_of("engine_contract")) - {"image_digest"}


def test_what_is_not_set_is_not_attested_and_needs_no_source(tmp_path: Path) -> None:
    given = document(contract__image_digest="", contract__kv_heads=0)
    del given["sources"]["kv_heads"]
    attested = read(tmp_path, given)
    assert "image_digest" not in attested.contract
    assert "kv_heads" not in attested.contract


def test_a_default_of_the_fleet_file_is_not_attested(tmp_path: Path) -> None:
    given = document()
    for section in ("contract", "sources"):
        del given[section]["connector"]
    assert "connector" not in read(tmp_path, given).contract


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "narwhal.fleet"}, 'schema must be "narwhal.attestation", got "narwhal.fleet"'),
        ({"schema_version": True}, "schema_version must be 1, got true"),
        ({"contract": []}, "contract must be an object, got a list"),
        ({"source": {}}, "source is not a known field; did you mean sources?"),
        ({"contract__kv_head": 8}, "contract.kv_head is not a known field; did you mean contract.kv_heads?"),
        ({"contract__kv_heads": "8"}, 'contract.kv_heads must be an integer, got "8"'),
        ({"contract__vllm_version": ""}, "contract.vllm_version is required"),
        ({"contract__image_digest": "latest"}, 'contract.image_digest must be "" or "sha256:" and 64 hex'),
        ({"sources__kv_heads": " "}, 'sources.kv_heads must be a nonempty string, got " "'),
        ({"sources__image_digest": "docker"}, "sources.image_digest is of no populated field of contract"),
    ],
)
def test_each_rule_has_its_sentence(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, document(**change))
    path = tmp_path / "attestation.json"
    assert any(problem.startswith(f"{path}: {said}") for problem in caught.value.problems)


def test_a_populated_field_without_a_source_is_named(tmp_path: Path) -> None:
    given = document()
    del given["sources"]["kv_heads"]
    with pytest.raises(
        ConfigError, match=r"sources\.kv_heads is required: where was contract\.kv_heads read"
    ):
        read(tmp_path, given)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, document(schema="x", contract__kv_heads="8", sources__head_size=3))
    assert len(caught.value.problems) == 3


def test_text_that_is_no_document(tmp_path: Path) -> None:
    for text in ("", "[]", "{", '{"contract": NaN}'):
        with pytest.raises(ConfigError):
            read(tmp_path, text)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(str(tmp_path / "none.json"))
