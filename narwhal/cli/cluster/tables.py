"""The cluster document for people. Fields that only the store knows are left out of a router's document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from narwhal.cli.times import shown_time

Fields = Mapping[str, Any]


def seconds(value: float | None) -> str:
    """For people: 0.42 s, 12.3 s, 5 min 02 s, 3 h 12 min, 4 d 03 h."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24:02d} h"


def status_view(document: Fields) -> RenderableType:
    parts: list[RenderableType] = [_lease(document), Text(), _routers(document["routers"])]
    if claims := document.get("claims"):
        parts += [Text(), _claims(claims)]
    if "totals" in document:
        parts += [Text(), Text(_totals(document))]
    parts += [Text(), *(Text(line) for line in _store(document["store"]))]
    return Group(*parts)


def _plain(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _lease(document: Fields) -> RenderableType:
    lease, rows = document["lease"], Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(style="bold")
    rows.add_column(overflow="fold")
    if name := document.get("cluster"):
        rows.add_row("cluster", name)
    rows.add_row("lease", _sentence(lease))
    if lease["state"] in ("held", "released"):
        rows.add_row("owner" if lease["state"] == "held" else "last owner", _owner(lease))
        rows.add_row("epoch", str(lease["epoch"]))
    if lease["holder"]:
        rows.add_row("holder", f"{lease['holder']} (seq {lease['seq']})")
    if lease.get("acquired_age_s") is not None:
        rows.add_row("acquired", f"{seconds(lease['acquired_age_s'])} ago")
        rows.add_row("renewed", f"{seconds(lease['renewed_age_s'])} ago (ttl {lease['ttl_s']:g} s)")
    elif lease.get("valid_for_s") is not None:
        rows.add_row("valid for", f"{seconds(lease['valid_for_s'])} (as this router sees it)")
    return rows


def _owner(lease: Fields) -> str:
    place = f" on {lease['host']} (pid {lease['pid']})" if lease.get("host") else ""
    return f"{lease['router_id']}  {lease['url']}{place}"


def _sentence(lease: Fields) -> str:
    state = str(lease["state"])
    words = {
        "none": "nothing is stored: the first router to look plants a marker and watches it",
        "vacant": "vacant: nobody owned yet, or the data was lost; routers watch the marker for the ttl",
        "local": "local: a router without a store",
        "unseen": "not seen yet",
    }
    if state == "held" and _overdue(lease):
        return f"held, but not renewed for {seconds(lease['renewed_age_s'])}: any standby may take it now"
    if state != "released":
        return words.get(state, state)
    reason = f": {lease['reason']}" if lease.get("reason") else ""
    successor = f", for {lease['successor']}" if lease.get("successor") else ""
    return f"released{reason}{successor}"


def _overdue(lease: Fields) -> bool:
    age, ttl = lease.get("renewed_age_s"), lease.get("ttl_s")
    return age is not None and ttl is not None and age > ttl


def _routers(rows: Sequence[Fields]) -> RenderableType:
    if not rows:
        return Text("no router has announced itself within the last 15 s")
    table = _plain("router", "role", "url", "mirror age", "ready to take", "seen", "version", "drift")
    for row in rows:
        standby = row["role"] == "standby"
        age = seconds(row["mirror_age_s"]) if standby else "-"
        takes = ("yes" if row["ready_to_take"] else "NO") if standby else "-"
        seen = f"{seconds(row['seen_s'])} ago"
        drift = "; ".join(row["drift"]) or "-"
        table.add_row(row["router_id"], row["role"], row["url"], age, takes, seen, row["version"], drift)
    return table


def _claims(claims: Sequence[Fields]) -> Table:
    table = _plain("claim by", "against epoch", "reason")
    for claim in claims:
        table.add_row(claim["router_id"], str(claim["epoch"]), claim["reason"])
    return table


def _totals(document: Fields) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in document["totals"].items() if count)
    return f"totals of {document['runs']} router runs: {counts or 'nothing yet'}"


def _store(store: Fields) -> list[str]:
    latency = "no answer" if store["latency_ms"] is None else f"{store['latency_ms']:.2f} ms"
    if "server" not in store:
        failures = f"{store['failures']} calls without an answer since this router's start"
        return [f"store: {store['mode']}, {latency}, {failures}"]
    facts = [
        f"{store['server']} {store['version']}",
        f"{store['mode']} {store['role']} with {store['connected_replicas']} replicas",
        f"append-only {'yes' if store['append_only'] else 'NO'}",
        f"maxmemory-policy {store['maxmemory_policy'] or 'not told'}",
        latency,
    ]
    return [f"store: {', '.join(facts)}", *(f"warning: {line}" for line in store["warnings"])]


def history_view(changes: Sequence[Fields]) -> RenderableType:
    if not changes:
        return Text("no change of ownership is remembered: neither by the log nor by a router that answers")
    table = _plain("when (UTC)", "epoch", "what", "router", "reason", "told by")
    for change in changes:
        when = _when(change["at"])
        told = ", ".join(change["told_by"])
        reason = change["reason"] + (f" -> {change['successor']}" if change.get("successor") else "")
        table.add_row(when, str(change["epoch"]), change["kind"], change["router_id"], reason or "-", told)
    return table


def _when(at: float) -> str:
    """To the millisecond."""
    time = shown_time(at, "%Y-%m-%d %H:%M:%S.%f")
    return time[:-3] or time
