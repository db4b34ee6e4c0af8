"""Plays switches on a site under load: ordered, judged, repaired; and what was seen of it from outside.

Seen are the clients' own books, the router's journal (when a verdict fell, and why) and who was asked. A
verdict is an event `hold` or `ejection`; it ends by `hold_ended` or `readmission`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.site import FIRST_PRODUCER, Site
from tests.faults.switches import Owed, Switch
from tests.support.load import WHOLE, Got, Load

RATE = 24.0
TOKENS = 24
WARM_S = 0.4
KEPT_S = 2.5
"""How long a fault lasts that takes no engine out."""
OUT_S = 12.0
"""How long one that must take it out is waited for."""
LINGER_S = 0.8
"""After the verdict: long enough for a readmission to be tried in vain."""
BACK_S = 40.0
"""KV that nobody pulled weighs on its producer for the 30 s of its lease: it may be chosen only then."""
TAKES_OUT = ("hold", "ejection")
POLL_S = 0.05
STANDSTILL_S = 0.08
"""A little under a tenth of the shortest limit: from there on a timeout may be the router's own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`after_s`: since the order. `reason`: the sentence of the journal."""

    kind: str
    iid: str
    after_s: float
    reason: str


@dataclass(slots=True)
class Seen:
    """What one case showed. Times by engine are seconds: `out` since the order, `back` since the repair.

    `avoided`: edges that placement avoided at any time before the repair.
    """

    switches: Sequence[Switch]
    targets: Sequence[str] = ()
    """The engine that each of them was ordered of."""
    got: list[Got] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    ordered: float = 0.0
    repaired: float = 0.0
    out_s: dict[str, float] = field(default_factory=dict)
    back_s: dict[str, float] = field(default_factory=dict)
    out_for: dict[str, int] = field(default_factory=dict)
    """Monitor passes from the repair to the last look that found an engine out; 0: no look did."""
    avoided: set[tuple[str, str]] = field(default_factory=set)
    lag_s: float = 0.0
    """Longest that the router's own loop stood still, by its own word."""
    served_again: set[str] = field(default_factory=set)
    """Engines with a leg of a served request that came after the repair."""

    @property
    def stood_still(self) -> bool:
        return self.lag_s > STANDSTILL_S

    def owing(self, owed: Owed) -> set[str]:
        """Engines with a fault of which that becomes."""
        return {iid for switch, iid in self.faults if switch.owed is owed}

    @property
    def faults(self) -> list[tuple[Switch, str]]:
        return list(zip(self.switches, self.targets, strict=True))

    @property
    def broken(self) -> set[tuple[str, str]]:
        """Edges that placement must avoid, as (producer, consumer)."""
        return {(FIRST_PRODUCER, iid) for switch, iid in self.faults if switch.edge}

    @property
    def lost(self) -> list[Got]:
        """Requests without a whole answer."""
        return [one for one in self.got if one.how != WHOLE]

    @property
    def saw(self) -> Counter[str]:
        return Counter(one.how for one in self.lost)

    @property
    def ejected(self) -> set[str]:
        return {verdict.iid for verdict in self.verdicts if verdict.kind == "ejection"}

    @property
    def verdicts(self) -> list[Verdict]:
        return [
            Verdict(row["kind"], row.get("iid", ""), row["at"] - self.ordered, str(row.get("reason", "")))
            for row in self.events
            if row["kind"] in TAKES_OUT and row.get("enforced", True)
        ]

    def verdicts_on(self, iid: str) -> list[Verdict]:
        return [one for one in self.verdicts if one.iid == iid]

    def failed_rows(self) -> list[dict[str, Any]]:
        return sorted(
            (row for row in self.rows if row["terminal"] != "served" and row["arrived"] >= self.ordered - 1),
            key=ended,
        )


def ended(row: dict[str, Any]) -> float:
    """Unix seconds of a request's end."""
    return float(row["arrived"] + row["duration_s"])


async def until(holds: Callable[[], bool], within_s: float) -> bool:
    """Polls a blocking look from a thread of its own, so that clients go on; False when it never held."""
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(holds):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def play(site: Site, *switches: Switch) -> Seen:
    """One case from a sound fleet to a sound fleet."""
    await site.heal()
    site.tail.read()
    seen = Seen(switches, site.targets(switches))
    label = f"case-{time.monotonic_ns()}"
    async with Load(site.router.url, label, rate=RATE, tokens=TOKENS) as load:
        await asyncio.sleep(WARM_S)
        seen.ordered = time.time()
        for switch, iid in seen.faults:
            await asyncio.to_thread(site.order, switch, iid)
        await _out(site, seen)
        site.clear()
        seen.repaired = time.time()
        await _back(site, seen)
    seen.got = load.got
    await asyncio.to_thread(site.router.becomes_idle)
    await read_journal(site, seen, label)
    return seen


async def _out(site: Site, seen: Seen) -> None:
    """Waits until those that must are ejected or avoided; where nobody must, for a while."""
    passing = {iid for switch, iid in seen.faults if switch.passes and len(seen.faults) > 1}
    targets, edges = seen.owing(Owed.OUT) - passing, seen.broken

    def look() -> bool:
        out = site.out()
        for iid in out:
            seen.out_s.setdefault(iid, time.time() - seen.ordered)
        seen.avoided |= site.avoided()
        seen.lag_s = max(seen.lag_s, site.router_lag_s())
        return targets <= {iid for iid, word in out.items() if word == "ejected"} and edges <= seen.avoided

    if targets or edges:
        await until(look, OUT_S)
        await asyncio.sleep(LINGER_S)
        await asyncio.to_thread(look)
    else:
        await until(lambda: look() and False, KEPT_S)


async def _back(site: Site, seen: Seen) -> None:
    """Waits until nobody is out and every target has served a request that came after the repair."""
    out, targets = set(seen.out_s), set(seen.targets)
    tail: list[dict[str, Any]] = []
    seen.out_for = dict.fromkeys(out, 0)
    began = site.passes()

    def look() -> bool:
        passes = site.passes() - began  # Before the look: as many at least it was out for.
        still = site.out()
        seen.out_for |= dict.fromkeys(still, passes)
        for iid in out - set(still):
            seen.back_s.setdefault(iid, time.time() - seen.repaired)
        tail.extend(site.tail.read())
        seen.served_again |= {
            row[half]
            for row in tail
            if row["kind"] == "request" and row["terminal"] == "served" and row["arrived"] > seen.repaired
            for half in ("prefill_iid", "decode_iid")
        }
        return not still and targets <= seen.served_again

    await until(look, BACK_S)
    _take(seen, tail)


async def read_journal(site: Site, seen: Seen, label: str) -> None:
    """The rest of the rows, those of the load's label alone: the journal is written a moment behind."""
    mine = [one.rid for one in seen.got]

    def complete() -> bool:
        _take(seen, site.tail.read())
        return len({row["client_rid"] for row in seen.rows if row["client_rid"]} & set(mine)) == len(mine)

    await until(complete, 10.0)
    seen.rows = [row for row in seen.rows if str(row["client_rid"]).startswith(label)]


def _take(seen: Seen, rows: Sequence[dict[str, Any]]) -> None:
    seen.rows.extend(row for row in rows if row["kind"] == "request")
    seen.events.extend(row for row in rows if row["kind"] not in ("request", "meta"))
