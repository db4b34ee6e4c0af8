"""docs/configuration.md is what the tables say."""

from __future__ import annotations

import json
import re
from pathlib import Path

from narwhal.config.document import render
from narwhal.config.load import load_fleet
from narwhal.config.option_table import OPTIONS
from narwhal.config.schema import FIELDS

DOCS = Path(__file__).resolve().parents[3] / "docs"
DOCUMENT = DOCS / "configuration.md"


def test_the_document_is_current() -> None:
    regenerate = "python -m narwhal.config.document > docs/configuration.md"
    assert DOCUMENT.read_text(encoding="utf-8") == render(), f"regenerate it: {regenerate}"


def test_every_field_and_option_has_its_row() -> None:
    text = render()
    rows = re.findall(r"^\| `(\S+)` \|", text, re.MULTILINE)
    assert rows == [field.name for field in FIELDS] + [option.flag for option in OPTIONS]


def test_tables_are_whole() -> None:
    for line in render().splitlines():
        if line.startswith("| `"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 6


def test_the_example_loads_without_a_warning(tmp_path: Path) -> None:
    example = re.search(r"```json\n(.*?)```", render(), re.DOTALL)
    assert example
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(json.loads(example[1])), encoding="utf-8")
    assert len(load_fleet(str(path), {"E1_URL": "http://e1:8000"}).engines) == 2


def test_the_cluster_guide_says_what_each_option_of_a_cluster_is_for() -> None:
    """In the order of the table; `--redis-url` and all after it are of a cluster."""
    section = (DOCS / "cluster.md").read_text(encoding="utf-8").split("## Options\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    flags = [option.flag for option in OPTIONS]
    assert re.findall(r"`(--\S+?)`", " ".join(first_cells)) == flags[flags.index("--redis-url") :]
