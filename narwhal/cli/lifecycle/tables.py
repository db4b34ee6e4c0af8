"""The lifecycle document for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from narwhal.cli.lifecycle.verdict import carried
from narwhal.cli.times import shown_time

Fields = Mapping[str, Any]


def lifecycle_view(document: Fields) -> RenderableType:
    """Head, one row an engine, then what is wrong, with the checks of those that failed one."""
    parts: list[RenderableType] = [*map(Text, _head(document)), Text(), _engines(document)]
    for iid, row in document["engines"].items():
        if error := row["error"]:
            parts += [Text(), Text(error if error.startswith(iid) else f"{iid}: {error}")]
            failed = any(check["outcome"] == "failed" for check in row["checks"])
            parts += map(Text, _checks(row["checks"]) if failed else ())
    if kept := carried(document):
        parts += map(Text, ("", *kept.values()))
    return Group(*parts)


def _head(document: Fields) -> list[str]:
    router, wave = document["router"], document["wave"]
    who = f"epoch {router['epoch']}" if router["epoch"] else "without a store"
    lines = [f"told by the owner ({who}); engine_restart_policy {document['engine_restart_policy']}"]
    if not router["controls_fleet"]:
        lines[0] = f"told by a router that does not own ({router['role']}): its copy, and what it sees itself"
    if wave["active"] or wave["readiness_withdrawn"]:
        lines.append(_wave(wave))
    return lines


def _wave(wave: Fields) -> str:
    """A fleet that is held until somebody drains it has no wave yet."""
    withdrawn = ["/ready is withdrawn"] if wave["readiness_withdrawn"] else []
    if not wave["active"]:
        return ", ".join(["the fleet is held until it is drained and restarted as a wave", *withdrawn])
    stops = "every engine may be stopped" if wave["ready_to_stop"] else "not ready to stop yet"
    return ", ".join([str(wave["id"]), *withdrawn, stops])


def _engines(document: Fields) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = (
        "engine",
        "state",
        "takes new",
        "may be stopped",
        "prefill + decode",
        "deadline",
        "process started",
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")
    accepted = document["process_starts"]
    for iid, row in document["engines"].items():
        resident = f"{row['resident']['prefill']} + {row['resident']['decode']}"
        takes, stops = (
            "yes" if row["accepts_new"] else "no",
            ("yes" if row["ready_to_stop"] else "no") if row["draining"] else "-",
        )
        table.add_row(
            iid,
            str(row["state"]).replace("_", " "),
            takes,
            stops,
            resident,
            _deadline(row),
            _started(row, accepted.get(iid)),
        )
    return table


def _deadline(row: Fields) -> str:
    if row["deadline_at"] is None or row["state"] not in ("draining", "deadline_exceeded"):
        return "-"
    return f"in {row['deadline_in_s']:.0f} s" if row["deadline_in_s"] else "passed"


def _started(row: Fields, accepted: Any) -> str:
    """Of an engine that is maintained the process before and the new one; else the one that was accepted."""
    old, new = row["old_process_start"], row["new_process_start"]
    if old is None:
        known = new if accepted is None else accepted
        return "-" if known is None else _when(known)
    return _when(old) + (f" -> {_when(new)}" if new is not None else "")


def _when(start: float) -> str:
    return shown_time(start, "%m-%d %H:%M:%S")


def _checks(checks: list[Fields]) -> list[str]:
    return [f"  {one['outcome']:<8}{one['name']:<14}{one['detail']}".rstrip() for one in checks]
