"""What came of it: one short table, and the promises that decide the exit status."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.table import Table

from narwhal.cli.demo.story import Act, Outcome


def table(outcome: Outcome) -> Table:
    result = Table(title="What the clients saw", title_justify="left")
    result.add_column("")
    for act in outcome.acts:
        result.add_column(act.name, justify="right")
    result.add_column("in all", justify="right")
    tally, last = outcome.tally, outcome.last
    rows = [
        ("requests completed", [_grew(act, "completed") for act in outcome.acts], len(tally.completed)),
        ("tries refused while no owner", [_grew(act, "refused") for act in outcome.acts], tally.refused),
        ("failed requests", [_grew(act, "failures") for act in outcome.acts], tally.failed),
        ("cut streams", [_grew(act, "cut") for act in outcome.acts], len(tally.cut)),
    ]
    for name, cells, total in rows:
        result.add_row(name, *map(str, cells), str(total))
    result.add_row("takeover", *(f"{act.takeover_s:.2f} s" for act in outcome.acts), "")
    sides = [(act.before[0], act.after[0]) for act in outcome.acts]
    result.add_row("owner", *(f"{one.owner} → {two.owner}" for one, two in sides), last.owner)
    result.add_row("epoch", *(f"{one.epoch} → {two.epoch}" for one, two in sides), str(last.epoch))
    for name in ("served", "offered"):
        changes = [f"{one.counters[name]} → {two.counters[name]}" for one, two in sides]
        result.add_row(f"counter {name}", *changes, str(last.counters[name]))
    return result


def _grew(act: Act, name: str) -> int:
    before, after = getattr(act.before[1], name), getattr(act.after[1], name)
    return after - before if isinstance(after, int) else len(after) - len(before)


def broken_promises(outcome: Outcome) -> Iterator[str]:
    """One sentence per promise that did not hold; nothing when all did."""
    killed, tally = outcome.acts[0], outcome.tally
    if outcome.overlaps:
        yield f"two routers owned at once, {outcome.overlaps} answers show it"
    for act in outcome.acts:
        before, after = act.before[0], act.after[0]
        if after.epoch <= before.epoch:
            yield f"{act.name}: the epoch went from {before.epoch} to {after.epoch}"
        if after.owner == before.owner:
            yield f"{act.name}: router {after.owner} still owns the fleet"
    yield from (f"a request failed: {reason}" for reason in tally.failures)
    late = [moment for moment in tally.cut if not killed.at <= moment <= killed.at + 1.0]
    if late:
        yield f"{len(late)} streams were cut without a kill"
    if outcome.tally.started != len(tally.completed) + len(tally.cut) + tally.failed:
        yield "a request ended in no way that is known"
    yield from _false_counters(outcome)


def _false_counters(outcome: Outcome) -> Iterator[str]:
    standings = [side[0] for act in outcome.acts for side in (act.before, act.after)] + [outcome.last]
    for one, two in itertools.pairwise(standings):
        for name, value in one.counters.items():
            if two.counters[name] < value:
                yield f"the counter {name} went back from {value} to {two.counters[name]}"
    served, known = outcome.last.counters["served"], len(outcome.tally.completed)
    if served > known:
        yield f"the routers counted {served} served requests, the clients {known}"
    if served < known:
        yield f"{known - served} served requests are missing from the totals"
