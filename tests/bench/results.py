"""What a mode found: figures, and how they stand against the budgets."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.load import Spread
from tests.bench.processes import CORES, ROOT

OPENING, CLOSING = "<!-- table of make bench DOC=1 -->", "<!-- end of the table -->"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity of one contender: median and range over the rounds."""

    what: str
    contender: str
    unit: str
    spread: Spread


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the budgets. `value` must be at or below `must`; `aim` is wanted."""

    what: str
    value: float
    must: float
    aim: float
    unit: str = ""

    @property
    def word(self) -> str:
        return "aim" if self.value <= self.aim else "must" if self.value <= self.must else "MISSED"


@dataclass(frozen=True, slots=True)
class Section:
    mode: str
    figures: Sequence[Figure] = ()
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = field(default=())


def machine() -> dict[str, Any]:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu,
        "cores": len(CORES),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "commit": commit,
        "load average": f"{os.getloadavg()[1]:.1f} over 5 minutes, the benchmark included",
        "command": command_line(sys.argv[1:]),
    }


def command_line(words: Sequence[str]) -> str:
    """As it was called, without the place of the results: a path of one machine says nothing to readers."""
    kept = list(words)
    if "--json" in kept:
        at = kept.index("--json")
        del kept[at : at + 2]
    return " ".join(["python -m tests.bench", *kept])


def tables(sections: Sequence[Section]) -> str:
    """Markdown: the budgets first, then every figure."""
    lines = ["| budget | measured | must | aim | stands |", "| --- | --- | --- | --- | --- |"]
    for one in (verdict for section in sections for verdict in section.verdicts):
        unit = f" {one.unit}" if one.unit else ""
        lines.append(f"| {one.what} | {one.value:.3g}{unit} | ≤ {one.must:g} | ≤ {one.aim:g} | {one.word} |")
    lines += ["", "| mode | figure | contender | median (lowest to highest) |", "| --- | --- | --- | --- |"]
    for section in sections:
        for figure in section.figures:
            value = f"{figure.spread} {figure.unit}".strip()
            lines.append(f"| {section.mode} | {figure.what} | {figure.contender} | {value} |")
    lines += ["", *(f"* {section.mode}: {note}" for section in sections for note in section.notes)]
    return "\n".join(lines)


def write(path: Path, sections: Sequence[Section]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "sections": [asdict(section) for section in sections]}
    path.write_text(json.dumps(document, indent=2) + "\n")


def write_into(page: Path, found: str) -> None:
    """Replaces what stands between the page's two table marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(OPENING)
    _, _, after = rest.partition(CLOSING)
    page.write_text(f"{before}{OPENING}\n\n{found.strip()}\n\n{CLOSING}{after}", encoding="utf-8")
