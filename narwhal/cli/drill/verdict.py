"""What did not hold in a row: bounds, and the invariants as seen from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from narwhal.cli.drill.run import Outcome, Shot
from narwhal.cli.drill.traffic import Ending
from narwhal.cli.witness import overlaps
from narwhal.model.settings import LeaseTimings

TTL_S: Final = LeaseTimings().ttl_s
LOOK_S: Final = 0.1
"""Our look at the record is late by a poll and a moment."""
FLUSH_S: Final = 0.2
"""A router that ends with its host may lose from the totals what it finished within this time before."""
SHOWN: Final = 3


def broken(outcome: Outcome, slack_s: float) -> Iterator[str]:
    """One sentence for each promise that did not hold."""
    if outcome.trouble:
        yield outcome.trouble
    for newer, older in overlaps(outcome.yeses)[:SHOWN]:
        yield (
            f"two owners: {newer.url} (epoch {newer.epoch}) said ready; {older.url} (epoch {older.epoch}), "
            f"asked {older.asked - newer.told:.3f} s later, said so too"
        )
    for number, shot in enumerate(outcome.shots, 1):
        yield from (f"run {number}: {words}" for words in _of_shot(outcome, shot, slack_s=slack_s))
    yield from _of_requests(outcome)
    if not outcome.trouble:
        yield from _of_counters(outcome)


def _of_shot(outcome: Outcome, shot: Shot, *, slack_s: float) -> Iterator[str]:
    row, (before, after) = outcome.row, shot.epochs
    if row.goal_s is None:
        if shot.epochs[0] != shot.epochs[1]:
            yield f"the owner changed: epoch {before} to {after}"
        return
    if after <= before:
        yield f"the epoch went from {before} to {after}"
    takeover_s = shot.takeover_s or 0.0
    if takeover_s > row.goal_s + slack_s:
        yield f"takeover took {takeover_s:.3f} s, over {row.goal_s:g} s and a slack of {slack_s:g} s"
    if row.silent and shot.taken is not None and shot.taken.told < shot.renewed_at + TTL_S - LOOK_S:
        early = shot.renewed_at + TTL_S - shot.taken.told
        yield f"the successor began {early:.3f} s before the old lease could be over"


def _of_requests(outcome: Outcome) -> Iterator[str]:
    failures = [one for one in outcome.books.failures if not _excused(outcome, one)]
    if failures:
        ways = sorted({one.how for one in failures})
        yield f"{len(failures)} requests failed: {'; '.join(ways[:SHOWN])}"
    cut = [one for one in outcome.books.cut if not (outcome.row.cuts and _under_way(outcome, one))]
    if cut:
        yield f"{len(cut)} streams were cut that the fault does not explain"


def _excused(outcome: Outcome, ending: Ending) -> bool:
    """A client behind a balancer does not try again: while nobody can own it is refused."""
    row = outcome.row
    if not outcome.behind_balancer or not (row.cuts or row.silent or row.outage):
        return False
    return any(shot.at - 1.0 <= ending.ended and ending.began <= shot.over + LOOK_S for shot in outcome.shots)


def _under_way(outcome: Outcome, ending: Ending) -> bool:
    return any(ending.began <= shot.at + LOOK_S and shot.at <= ending.ended for shot in outcome.shots)


def _of_counters(outcome: Outcome) -> Iterator[str]:
    """Nothing lost, nothing counted twice. An answer that was counted may still break on its way out."""
    books = outcome.books
    whole = books.count("whole")
    broken_off = len(books.cut) + len(books.failures)
    if outcome.row.cuts:
        broken_off += sum(one.tries - 1 for one in books.endings)
    lost = 0 if outcome.row.exact else _finished_at_the_fault(outcome)
    if outcome.counted < whole - lost:
        yield f"{whole - outcome.counted} served requests are missing from the totals ({whole} served)"
    if outcome.counted > whole + broken_off:
        yield f"the totals count {outcome.counted} served requests, clients {whole} (and {broken_off} broken)"


def _finished_at_the_fault(outcome: Outcome) -> int:
    return sum(
        any(shot.at - FLUSH_S <= one.ended <= shot.at + FLUSH_S for shot in outcome.shots)
        for one in outcome.books.endings
        if one.how == "whole"
    )
