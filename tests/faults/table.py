"""The tables of docs/failures.md, from what was seen."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from tests.faults.play import Seen
from tests.faults.rules import BACK_PASSES, is_late
from tests.faults.site import EJECT_AFTER, MONITOR_S, PROBE_EVERY_S, SECTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "failures.md"
OPENING, CLOSING = "<!-- table of make faults DOC=1 -->", "<!-- end of the table -->"
_REASON = 90


def row(name: str, seen: Seen, again: Seen | None) -> str:
    """One case: `again` is the same with a second attempt allowed."""
    cells = [
        name,
        sights(seen.saw),
        f"{len(seen.lost)} of {len(seen.got)}",
        "" if again is None else f"{len(again.lost)} of {len(again.got)}",
        "<br>".join(verdict_words(seen)) or "nobody",
        times(seen.out_s),
        returns(seen),
        others(seen),
    ]
    return f"| {' | '.join(cells)} |"


ALONE = "One fault:"
CROSSED = "Two faults at once, the first on e1, the second on e3:"
ALIKE = (
    "Two faults at once on engines of one role, where e0, e1, e2 prefill and e3, e4, e5 decode: the first on "
    "e1 or e4, the second on e2 or e5:"
)
HEAD = (
    "| fault | failed clients saw | lost | lost, 2 attempts | who was taken out, and why | out after "
    "| back after repair | others |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


def sights(saw: Counter[str]) -> str:
    return ", ".join(f"{how} × {count}" for how, count in saw.most_common(3)) or "nothing"


def verdict_words(seen: Seen) -> list[str]:
    """The first verdict of each kind on each engine, in the router's own words."""
    first: dict[tuple[str, str], str] = {}
    for verdict in seen.verdicts:
        reason = verdict.reason.replace("|", "/").replace("\n", " ")
        short = reason if len(reason) <= _REASON else reason[: _REASON - 1] + "…"
        first.setdefault((verdict.kind, verdict.iid), f"{verdict.iid} {verdict.kind}: {short}")
    edges = [f"edge {producer} → {consumer} avoided" for producer, consumer in sorted(seen.avoided)]
    return [*first.values(), *edges]


def times(by_engine: dict[str, float]) -> str:
    return ", ".join(f"{iid} {seconds:.1f} s" for iid, seconds in sorted(by_engine.items())) or "-"


def returns(seen: Seen) -> str:
    words = (
        f"{iid} {seconds:.1f} s{', late' if is_late(seen, iid) else ''}"
        for iid, seconds in sorted(seen.back_s.items())
    )
    return ", ".join(words) or "-"


def others(seen: Seen) -> str:
    hurt = sorted({verdict.iid for verdict in seen.verdicts} - set(seen.targets))
    return ", ".join(hurt) if hurt else "untouched"


def preface() -> list[str]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    engine, serving = SECTIONS["engine"], SECTIONS["serving"]
    return [
        f"Measured {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} at commit {commit}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f}, by "
        "`make faults DOC=1` (`python -m tests.faults --doc`).",
        "",
        "Two prefill engines (e0, e1) and two decode engines (e2, e3), simulated, 24 requests a second, half "
        f"of them streams. The fault is on e1 or e3. `eject_after` {EJECT_AFTER}, `monitor_interval_s` "
        f"{MONITOR_S}, a probe of what is out every {PROBE_EVERY_S:g} s, "
        f"`first_token_timeout_s` {engine['first_token_timeout_s']:g}, "
        f"`decode_read_timeout_s` {engine['decode_read_timeout_s']:g}, "
        f"`prefill_timeout_s` {serving['prefill_timeout_s']:g}, "
        f"`health_timeout_s` {engine['health_timeout_s']:g}. *Lost* are requests without a whole answer, "
        "from the order to the end of the case; *lost, 2 attempts* is a run with `max_attempts` 2. *Late* is "
        f"who was still out {BACK_PASSES} monitor passes, two probe intervals, after its repair; the others "
        "were back in time.",
    ]


def page(begun: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """`begun`: the preface as it was when the first case began. `rows`: by the words above their table."""
    tables = [["", words, "", *HEAD, *told] for words, told in rows.items() if told]
    return "\n".join([*begun, *chain.from_iterable(tables)])


def write_into(found: str) -> None:
    """Replaces what stands between the page's two table marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(OPENING)
    _, _, after = rest.partition(CLOSING)
    PAGE.write_text(f"{before}{OPENING}\n\n{found.strip()}\n\n{CLOSING}{after}", encoding="utf-8")
