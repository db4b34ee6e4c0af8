"""What must hold of a soak, judged from records alone. Each check yields sentences, none when all is well."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf
from typing import Any

from tests.soak.cluster import LIMIT_S, PASS_S, WINDOW_S
from tests.soak.watch import Poll, TotalsSight

UNDER_WAY_S = 1.0
"""A leg that was dispatched before a verdict may arrive that much later on a busy machine."""
AROUND_S = 0.02
OUTCOMES = ("served", "failed", "refused", "rejected", "expired", "cancelled", "invalid_requests")
LEGS = ("prefill", "decode", "tokenize")
TAKES_OUT = ("hold", "ejection")
TAKES_IN = ("hold_ended", "readmission")
INFERENCE, EJECTION = "inference", "ejection"
ROLES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Event:
    """A journal row of a verdict or of its end. `hold`: inference or quarantine, empty for an ejection."""

    router: str
    at: float
    kind: str
    iid: str
    reason: str
    hold: str = ""

    @property
    def cause(self) -> tuple[str, str]:
        """What keeps, or kept, which engine out."""
        return self.iid, self.hold or EJECTION


@dataclass(frozen=True, slots=True)
class Leg:
    """One request as an engine got it."""

    at: float
    iid: str
    leg: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Outage:
    """One engine of one owner took nothing new from `begin` to `end`, without a gap."""

    epoch: int
    iid: str
    begin: float
    end: float


def events_of(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Event]:
    """The enforced verdicts and their ends, of all routers, by time."""
    found = [
        Event(router, row["at"], row["kind"], row["iid"], row["reason"], row.get("hold", ""))
        for router, journal in rows.items()
        for row in journal
        if row["kind"] in (*TAKES_OUT, *TAKES_IN) and row.get("enforced", True)
    ]
    return sorted(found, key=lambda event: event.at)


# --- no request on an ineligible engine -------------------------------------------------------------


def outages(polls: Sequence[Poll], events: Sequence[Event]) -> list[Outage]:
    """Times in which an engine was surely out: two looks in a row say so, and nothing ended it between."""
    found: dict[tuple[int, str], list[Outage]] = {}
    for before, after in _in_a_row(polls):
        moved = _moved(events, before, after)
        for iid in (before.out & after.out) - moved:
            of_engine = found.setdefault((before.epoch, iid), [])
            if of_engine and of_engine[-1].end >= before.asked:
                of_engine[-1] = Outage(before.epoch, iid, of_engine[-1].begin, after.asked)
            else:
                of_engine.append(Outage(before.epoch, iid, before.told, after.asked))
    return [outage for of_engine in found.values() for outage in of_engine]


def _in_a_row(polls: Sequence[Poll]) -> Iterator[tuple[Poll, Poll]]:
    by_owner = sorted(polls, key=lambda poll: (poll.epoch, poll.router, poll.asked))
    for _, of_owner in groupby(by_owner, key=lambda poll: (poll.epoch, poll.router)):
        yield from pairwise(of_owner)


def _moved(events: Sequence[Event], before: Poll, after: Poll) -> set[str]:
    """Engines about which anything was told from one look to the next."""
    first, last = before.asked - AROUND_S, after.told + AROUND_S
    return {one.iid for one in events if one.router == before.router and first <= one.at <= last}


def legs_on_engines_that_were_out(legs: Iterable[Leg], outages: Sequence[Outage]) -> Iterator[str]:
    by_engine: dict[tuple[int, str], list[Outage]] = {}
    for outage in outages:
        by_engine.setdefault((outage.epoch, outage.iid), []).append(outage)
    for leg in legs:
        if leg.leg not in LEGS:
            continue
        for outage in by_engine.get((leg.epoch, leg.iid), ()):
            if outage.begin + UNDER_WAY_S < leg.at <= outage.end:
                late = leg.at - outage.begin
                yield f"{leg.iid} got a {leg.leg} {late:.2f} s after it was out (epoch {leg.epoch})"


# --- no role emptied by a verdict that may not ------------------------------------------------------


def roles_emptied(polls: Sequence[Poll], events: Sequence[Event], pinned: frozenset[str]) -> Iterator[str]:
    """Replays each owner's verdicts from look to look: after a hold somebody still serves each role.

    Quarantines run out without a word, so those in force count as over.
    """
    for before, after in _in_a_row(polls):
        causes = {(iid, EJECTION) for iid in before.ejected | before.draining}
        causes |= {(iid, kind) for iid, kind in before.held.items() if kind == INFERENCE}
        for event in events:
            if event.router != before.router or not before.told < event.at <= after.asked:
                continue
            if event.kind in TAKES_IN:
                causes.discard(event.cause)
            elif event.cause not in causes:
                out = {iid for iid, _ in causes} | {event.iid}
                if may_not_empty(event):
                    yield from _emptied(before, out, event, pinned=pinned)
                if event.hold in ("", INFERENCE):
                    causes.add(event.cause)


def may_not_empty(event: Event) -> bool:
    """Holds and drift take nobody's last engine; confirmed failures may."""
    return event.kind == "hold" or is_drift(event)


def is_drift(event: Event) -> bool:
    return event.reason.startswith("decode drift")


def _emptied(poll: Poll, out: set[str], event: Event, *, pinned: frozenset[str]) -> Iterator[str]:
    for role in ROLES:
        able = {iid for iid, own in poll.roles.items() if own == role or iid not in pinned}
        if event.iid in able and able <= out:
            yield f"{event.kind} of {event.iid} left nobody for {role}: {event.reason}"


# --- no healthy engine is thrown out ----------------------------------------------------------------

BUSY_S = 1.0
AFTERWARDS_S = 2 * LIMIT_S + PASS_S + BUSY_S
"""An ejection may come that long after the fault: the two legs of a probe that had begun, and a pass."""
SLOW_TAIL_S = 6.0
"""The longest stream that began while tokens came slowly: 60 tokens of 0.1 s."""
AFTER_DRIFT_S = SLOW_TAIL_S + WINDOW_S + PASS_S + BUSY_S


class Spells:
    """When each engine had a fault on order, by Unix seconds."""

    def __init__(self) -> None:
        self._spells: dict[str, list[tuple[float, float]]] = {}

    def begin(self, iid: str, at: float) -> None:
        """A fault more, or the first: the spell is open until it ends."""
        spells = self._spells.setdefault(iid, [])
        if not spells or spells[-1][1] != inf:
            spells.append((at, inf))

    def end(self, iid: str, at: float) -> None:
        spells = self._spells.get(iid)
        if spells and spells[-1][1] == inf:
            spells[-1] = (spells[-1][0], at)

    def cover(self, iid: str, at: float, afterwards_s: float) -> bool:
        """Whether it was ill then, or at most `afterwards_s` before."""
        return iid in self.ill_between(at, at, afterwards_s)

    def ill_between(self, begin: float, end: float, afterwards_s: float) -> set[str]:
        """Engines that were ill at any time of it, or at most `afterwards_s` before."""
        return {
            iid
            for iid, spells in self._spells.items()
            if any(begun <= end and begin <= ended + afterwards_s for begun, ended in spells)
        }


@dataclass(frozen=True, slots=True)
class Blamed:
    """A sound question that was answered with 500, as one is that fails alike on two engines."""

    began: float
    ended: float
    words: str


def blamed_without_cause(blamed: Iterable[Blamed], spells: Spells) -> Iterator[str]:
    """Two engines that are ill in the same way look like a request that is: no fewer may."""
    for one in blamed:
        if len(spells.ill_between(one.began, one.ended, AFTERWARDS_S)) < 2:
            yield f"500 with fewer than two engines at fault: {one.words}"


def ejections_without_cause(events: Iterable[Event], spells: Spells) -> Iterator[str]:
    for event in events:
        afterwards_s = AFTER_DRIFT_S if is_drift(event) else AFTERWARDS_S
        if event.kind == "ejection" and not spells.cover(event.iid, event.at, afterwards_s):
            yield f"{event.iid} was ejected and had no fault: {event.reason}"


# --- nothing befalls an engine that is never at fault -----------------------------------------------


_ENGINE = re.compile(r"\be\d+\b")
CLEARED_S = AFTERWARDS_S + 10.0
"""A suspicion is cleared by a probe; a takeover may come between."""


def befell_the_spared(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], spared: Set[str], spells: Spells
) -> Iterator[str]:
    """Every ejection of them, every edge between two of them that was avoided, and every hold that took
    effect but for a suspicion that was cleared.

    A quarantine is no verdict: any leg that fails brings one, also where the partner is at fault. Nor is a
    hold while partners are ill: from failed handoffs alone nobody knows whose they are.
    """
    every = [row for journal in rows.values() for row in journal]
    for router, journal in rows.items():
        for row in journal:
            taken_out = row["kind"] in TAKES_OUT and row.get("hold") != "quarantine"
            pair = row["kind"] == "edge_avoided" and row["producer"] in spared
            counts = (taken_out or pair) and row["iid"] in spared and row.get("enforced", True)
            if counts and not _was_cleared(row, every, spells):
                yield f"{row['kind']} of {row['iid']}, which was never at fault, by {router}: {row['reason']}"


def _was_cleared(row: Mapping[str, Any], every: Iterable[Mapping[str, Any]], spells: Spells) -> bool:
    """A hold that a probe ended soon, and for which somebody else gave cause: one of those whom it names."""
    ended = any(
        (one["kind"], one.get("iid"), one.get("hold")) == ("hold_ended", row["iid"], row.get("hold"))
        and 0 <= one["at"] - row["at"] <= CLEARED_S
        for one in every
    )
    ill = spells.ill_between(row["at"], row["at"], AFTERWARDS_S) - {row["iid"]}
    named = set(_ENGINE.findall(str(row["reason"]))) - {row["iid"]}
    return row["kind"] == "hold" and ended and bool(ill & named if named else ill)


# --- totals add up ----------------------------------------------------------------------------------


def totals_that_do_not_add_up(sights: Sequence[TotalsSight]) -> Iterator[str]:
    """In every sight offered is the sum of the outcomes; between sights no counter of a run goes back."""
    for sight in sights:
        total: Counter[str] = Counter()
        for counters in sight.by_run.values():
            total.update(counters)
        outcomes = sum(total[name] for name in OUTCOMES)
        if total["offered"] != outcomes:
            yield f"offered {total['offered']} is not the sum of outcomes {outcomes}"
    for before, after in pairwise(sights):
        for run, counters in before.by_run.items():
            now = after.by_run.get(run)
            if now is None:
                yield f"run {run} vanished from the totals"
                continue
            back = [name for name, count in counters.items() if now.get(name, 0) < count]
            yield from (f"{name} of run {run} went back" for name in back)


def rows_unlike_totals(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], last: TotalsSight, runs: Iterable[str]
) -> Iterator[str]:
    """Of runs that still live, journal and totals tell the same outcomes."""
    told: dict[str, Counter[str]] = {run: Counter() for run in runs}
    for journal in rows.values():
        for row in journal:
            if row["kind"] == "request" and row["run"] in told:
                told[row["run"]][row["terminal"]] += 1
    for run, counts in told.items():
        stored = last.by_run.get(run, {})
        for name in OUTCOMES:
            if counts[name] != stored.get(name, 0):
                yield f"{name} of run {run}: journal {counts[name]}, totals {stored.get(name, 0)}"
