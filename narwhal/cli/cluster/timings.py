"""`narwhal cluster timings`: the relations of T, R, M, P and o, and the takeover times that follow."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from narwhal.model.settings import LeaseTimings

CONNECT_S: Final = 0.5
"""Limit of one connection to the store: what the first renewal after an outage may wait for."""
STALL_S: Final = 2.0
"""Silence of a router's main loop after which its warden ends it."""

Fields = dict[str, Any]


def timings_document(timings: LeaseTimings) -> Fields:
    """Valid timings only. Every bound in seconds; a pair is [least, most]."""
    ttl, renew, margin = timings.ttl_s, timings.renew_interval_s, timings.safety_margin_s
    probe, attempt = timings.standby_probe_interval_s, timings.attempt_timeout_s
    return {
        "timings": {"T": ttl, "R": renew, "M": margin, "P": probe, "o": attempt},
        "relations": [
            _relation("R + 2·o ≤ T − M", renew + 2 * attempt, right=ttl - margin),
            _relation("3·R ≤ T − M", 3 * renew, right=ttl - margin),
            _relation("0.1·T ≤ M", 0.1 * ttl, right=margin),
            _relation("P ≤ R", probe, right=renew),
        ],
        "clock_rate_ratio": round(ttl / (ttl - margin), 4),
        "events": [
            _event(
                "clean shutdown, yield", "flush + release + wake + acquire + publish", bound_s=[0.0, 0.15]
            ),
            _event("router killed (-9, OOM, crash)", "waitpid + the same", bound_s=[0.0, 0.3]),
            _event("process frozen", "2 s stall limit + kill + the same", bound_s=[STALL_S, STALL_S + 0.5]),
            _event(
                "host lost, partition",
                "T − φ + s, φ in [0, R), s in [0, P]",
                bound_s=[ttl - renew, ttl + probe],
            ),
            _event("first start on an empty store", "T + s", bound_s=[ttl, ttl + probe]),
        ],
        "unnoticed_outage_s": round(ttl - margin - renew - CONNECT_S, 3),
        "longer_outage_adds_s": [ttl, ttl + probe],
        "owner_stops_before_others_begin_s": margin,
    }


def _relation(words: str, left: float, *, right: float) -> Fields:
    return {"relation": words, "left": round(left, 3), "right": round(right, 3)}


def _event(name: str, formula: str, *, bound_s: list[float]) -> Fields:
    return {"event": name, "formula": formula, "takeover_s": [round(value, 3) for value in bound_s]}


def timings_view(document: Fields) -> RenderableType:
    relations = Table("relation", "is", "room", box=None, pad_edge=False)
    for row in document["relations"]:
        room = row["right"] - row["left"]
        relations.add_row(row["relation"], f"{row['left']:g} ≤ {row['right']:g}", f"{room:g} s")
    events = Table("event", "formula", "takeover", box=None, pad_edge=False)
    for row in document["events"]:
        least, most = row["takeover_s"]
        events.add_row(row["event"], row["formula"], f"{least:g} to {most:g} s" if least else f"< {most:g} s")
    unnoticed = max(0.0, document["unnoticed_outage_s"])
    least, most = document["longer_outage_adds_s"]
    events.add_row("store away for up to", "T − M − R − connect 0.5", f"{unnoticed:g} s are not noticed")
    events.add_row("store away for longer", "outage + T + P; 0 with fail-safe", f"+ {least:g} to {most:g} s")
    words = " ".join(f"{name} {value:g} s," for name, value in document["timings"].items())
    return Group(
        Text(words.rstrip(",")),
        Text(),
        relations,
        Text(),
        events,
        Text(),
        Text(
            f"The owner stops {document['owner_stops_before_others_begin_s']:g} s before anybody else may "
            f"begin; local clocks may differ in rate by a factor below {document['clock_rate_ratio']:g}."
        ),
    )
