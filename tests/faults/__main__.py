"""Entry of `make faults`: `python -m tests.faults [--doc] [--alone] [--sites N] [word ...]`.

Plays each fault switch alone, then pairs of them, each with one attempt a request and with two, judges
every case by the rules of the tests and prints the tables of docs/failures.md; `--doc` writes them there.
Words choose the cases whose name has them. Exit status 0 when everything held, 1 when something did not (then
nothing is written), 2 where `--doc` was asked for on a machine that is busy with something else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue

from tests.faults import table
from tests.faults.pairs import ALIKE, CROSSED, ENGINES, MORE_ENGINES, Case, engines_for
from tests.faults.play import Seen
from tests.faults.rules import breaches, name_of, played
from tests.faults.site import Site, fault_site
from tests.faults.switches import SWITCHES

SIZES = (ENGINES, MORE_ENGINES)
QUIET_LOAD = 3.0
"""Figures of a busier machine are not worth a page."""


@dataclass(frozen=True, slots=True)
class Sites:
    """The same fleet twice: with one attempt a request, and with two."""

    once: Site
    twice: Site


@dataclass(frozen=True, slots=True)
class Row:
    text: str
    breaches: Sequence[str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="word", help="only cases whose name has one of these")
    parser.add_argument("--doc", action="store_true", help="write the tables into docs/failures.md")
    parser.add_argument("--alone", action="store_true", help="no pairs")
    parser.add_argument("--sites", type=int, default=2, help="fleets that run cases beside each other (2)")
    options = parser.parse_args()
    if options.doc and (load := os.getloadavg()[0]) > QUIET_LOAD:
        print(
            f"make faults: load average {load:.1f}, above {QUIET_LOAD:g}: nothing is measured",
            file=sys.stderr,
        )
        return 2
    kinds: dict[str, list[Case]] = {table.ALONE: _chosen([(switch,) for switch in SWITCHES], options.words)}
    if not options.alone:
        kinds |= {table.CROSSED: _chosen(CROSSED, options.words), table.ALIKE: _chosen(ALIKE, options.words)}
    begun = table.preface()
    rows = _played([*chain.from_iterable(kinds.values())], options.sites)
    texts = iter([row.text for row in rows])
    found = table.page(begun, {kind: list(islice(texts, len(cases))) for kind, cases in kinds.items()})
    print(found)
    wrong = [f"BREACH {words}" for row in rows for words in row.breaches]
    print("\n".join(wrong) or "everything held")
    if options.doc and not wrong:
        table.write_into(found)
    return 1 if wrong else 0


def _chosen(cases: Sequence[Case], words: Sequence[str]) -> list[Case]:
    return [case for case in cases if not words or any(word in name_of(case) for word in words)]


def _played(cases: Sequence[Case], count: int) -> list[Row]:
    """Their table rows, in order; so many of them at a time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        free = {size: _sites(Path(folder) / str(size), stack, size=size, count=count) for size in SIZES}
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda case: _row(case, free[engines_for(case)]), cases))


def _sites(home: Path, stack: ExitStack, *, size: int, count: int) -> SimpleQueue[Sites]:
    free: SimpleQueue[Sites] = SimpleQueue()
    for number in range(count):
        once = fault_site(home / f"{number}-once", count=size)
        twice = fault_site(home / f"{number}-twice", count=size, serving={"max_attempts": 2})
        free.put(Sites(stack.enter_context(once), stack.enter_context(twice)))
    return free


def _row(case: Case, free: SimpleQueue[Sites]) -> Row:
    sites, name = free.get(), name_of(case)
    try:
        print(f"faults: {name}", file=sys.stderr, flush=True)
        once, twice = asyncio.run(_both(case, sites))
    finally:
        free.put(sites)
    wrong = [f"{name}: {words}" for words in breaches(once)]
    wrong += [f"{name}, two attempts: {words}" for words in breaches(twice)]
    return Row(table.row(name, once, twice), wrong)


async def _both(case: Case, sites: Sites) -> tuple[Seen, Seen]:
    once, twice = await asyncio.gather(played(sites.once, case), played(sites.twice, case))
    return once, twice


if __name__ == "__main__":
    sys.exit(main())
