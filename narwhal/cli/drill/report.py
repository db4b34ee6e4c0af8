"""The figures of a drill: a table for people, one JSON document for programs."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table

from narwhal import __version__
from narwhal.cli.drill.rows import ROWS, Row
from narwhal.cli.drill.run import Outcome, Plan
from narwhal.cli.drill.traffic import Ending
from narwhal.cli.drill.verdict import broken

Document = dict[str, Any]
ADDED_MS: Final = 5.0
"""The most that a fault which nobody may notice adds to the 99th percentile of the first byte."""


def share(values: Sequence[float], part: float) -> float | None:
    """The value below which that part of the values lies (nearest rank); None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def row_document(outcome: Outcome, plan: Plan) -> Document:
    takeovers = [shot.takeover_s for shot in outcome.shots if shot.takeover_s is not None]
    detections = [shot.detection_s for shot in outcome.shots if shot.detection_s is not None]
    books, waits = outcome.books, first_bytes(outcome)
    sentences = list(broken(outcome, plan.slack_s))
    return {
        "name": outcome.name,
        "event": outcome.row.event,
        "formula": outcome.row.formula,
        "runs": len(outcome.shots),
        "goal_s": {"most": outcome.row.goal_s, "median": outcome.row.typical_s},
        "detection_s": figures(detections),
        "takeover_s": figures(takeovers),
        "goal_met": goal_met(outcome.row, takeovers, added_ms=waits["added_p99"]),
        "served_again_s": figures(_served_again(outcome)),
        "requests": {
            "sent": outcome.sent,
            "per_second": round(outcome.rate, 1),
            "whole": books.count("whole"),
            "failed": len(books.failures),
            "cut": len(books.cut),
            "tried_again": sum(one.tries > 1 for one in books.endings),
        },
        "first_byte_ms": waits,
        "probes": outcome.probes,
        "log_lines": {name: len(lines) for name, lines in outcome.log.items()},
        "counted_served": outcome.counted,
        "broken": sentences,
        "held": not sentences,
    }


def goal_met(row: Row, takeovers: Sequence[float], *, added_ms: float | None) -> bool | None:
    """Whether the median and the 99th percentile are below their goals, with no slack for a busy machine;
    where there may be no takeover, whether the fault made requests wait. None: nothing to judge."""
    if row.goal_s is None:
        return None if added_ms is None else added_ms < ADDED_MS
    if not takeovers:
        return None
    late = share(takeovers, 0.99) or 0.0
    return late < row.goal_s and (row.typical_s is None or statistics.median(takeovers) < row.typical_s)


def figures(values: Sequence[float]) -> Document:
    if not values:
        return {"median": None, "p99": None, "most": None, "all": []}
    return {
        "median": round(statistics.median(values), 4),
        "p99": round(share(values, 0.99) or 0.0, 4),
        "most": round(max(values), 4),
        "all": [round(value, 4) for value in values],
    }


def _served_again(outcome: Outcome) -> list[float]:
    """For each takeover: from the fault to the first answer that the successor began."""
    found = []
    for shot in outcome.shots:
        if shot.taken is not None:
            firsts = [
                one.first for one in outcome.books.endings if one.first and one.first >= shot.taken.asked
            ]
            found += [min(firsts) - shot.at] if firsts else []
    return found


def first_bytes(outcome: Outcome) -> Document:
    """Milliseconds to the first byte of requests that began while a fault was on, of all others, and by how
    much the fault raised their 99th percentile."""

    def during(one: Ending) -> bool:
        return any(shot.at <= one.began <= shot.over for shot in outcome.shots)

    def times(wanted: bool) -> list[float]:
        answered = [one for one in outcome.books.endings if one.first is not None]
        return [((one.first or 0.0) - one.began) * 1000 for one in answered if during(one) is wanted]

    def row(values: Sequence[float]) -> Document:
        return {
            "count": len(values),
            "p50": _rounded(share(values, 0.5)),
            "p99": _rounded(share(values, 0.99)),
        }

    fault, otherwise = row(times(True)), row(times(False))
    late, usual = fault["p99"], otherwise["p99"]
    added = None if late is None or usual is None else _rounded(late - usual)
    return {"fault": fault, "otherwise": otherwise, "added_p99": added}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def report_document(rows: Sequence[Document], plan: Plan) -> Document:
    load = os.getloadavg()
    return {
        "schema": "narwhal.drill",
        "schema_version": 1,
        "at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "version": __version__,
        "machine": {
            "processors": os.cpu_count(),
            "load_average": [round(one, 2) for one in load],
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
        "load": {
            "requests_per_second": plan.load.rate,
            "stream_s": plan.load.stream_s,
            "tokens": plan.load.tokens,
            "balancer": plan.setting.haproxy is not None,
        },
        "slack_s": plan.slack_s,
        "rows": list(rows),
        "held": all(row["held"] for row in rows),
    }


def table(rows: Sequence[Document]) -> Table:
    headings = (
        "fault",
        "runs",
        "noticed",
        "takeover",
        "most",
        "goal",
        "met",
        "sent",
        "failed",
        "cut",
        "tried again",
    )
    result = Table(title="What was seen from outside", title_justify="left")
    for heading in headings:
        result.add_column(heading, justify="left" if heading == "fault" else "right")
    result.add_column("verdict")
    for row in rows:
        requests = row["requests"]
        result.add_row(
            row["event"],
            str(row["runs"]),
            _seconds(row["detection_s"]["median"]),
            _seconds(row["takeover_s"]["median"]),
            _seconds(row["takeover_s"]["most"]),
            _goal(row),
            _MET[row["goal_met"]],
            str(requests["sent"]),
            str(requests["failed"]),
            str(requests["cut"]),
            str(requests["tried_again"]),
            "held" if row["held"] else "BROKEN",
        )
    return result


_MET: Final = {True: "yes", False: "NO", None: "-"}


def _goal(row: Mapping[str, Any]) -> str:
    most, median = row["goal_s"]["most"], row["goal_s"]["median"]
    if most is None:
        return f"not noticed, p99 + < {ADDED_MS:g} ms"
    return f"< {most:g} s" + (f", median < {median:g} s" if median else "")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def listing() -> Table:
    result = Table(box=None, pad_edge=False)
    for heading in ("name", "fault", "takeover", "goal", "needs"):
        result.add_column(heading)
    for name, row in ROWS.items():
        needs = row.needs
        words = {
            "a store of its own": needs.own_store,
            "the warden": needs.warden,
            "fail-safe": needs.failsafe,
        }
        goal = "not noticed" if row.goal_s is None else f"< {row.goal_s:g} s"
        result.add_row(
            name, row.event, row.formula, goal, ", ".join(word for word, is_so in words.items() if is_so)
        )
    return result
