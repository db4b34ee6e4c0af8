"""Entry of `make faults`: `python -m tests.faults [--doc] [--alone] [--sites N] [word ...]`.

Plays each fault switch alone, then the chosen pairs, each with one attempt a request and with two, judges
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.faults import table
from tests.faults.pairs import PAIRS
from tests.faults.play import Seen, play
from tests.faults.rules import breaches
from tests.faults.site import Site, fault_site
from tests.faults.switches import SWITCHES, Switch

QUIET_LOAD = 3.0
"""Figures of a busier machine are not worth a page."""
TRIES = 3
"""Of a case in which the router itself stood still: that blames nobody, and proves nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    switches: tuple[Switch, ...]

    @property
    def name(self) -> str:
        return " + ".join(switch.id for switch in self.switches)

    def targets(self) -> str:
        return ", ".join(Site.target(switch) for switch in self.switches)


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
    alone = list(_chosen(((switch,) for switch in SWITCHES), options.words))
    pairs = [] if options.alone else list(_chosen(PAIRS, options.words))
    begun = table.preface()
    rows = _played([*alone, *pairs], options.sites)
    texts = [row.text for row in rows]
    found = table.page(begun, alone=texts[: len(alone)], pairs=texts[len(alone) :])
    print(found)
    wrong = [f"BREACH {words}" for row in rows for words in row.breaches]
    print("\n".join(wrong) or "everything held")
    if options.doc and not wrong:
        table.write_into(found)
    return 1 if wrong else 0


def _chosen(groups: Any, words: Sequence[str]) -> Iterator[Case]:
    cases = (Case(tuple(group)) for group in groups)
    return (case for case in cases if not words or any(word in case.name for word in words))


def _played(cases: Sequence[Case], count: int) -> list[Row]:
    """Their table rows, in order. Each site is a pair of fleets: one attempt, two attempts."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        free: SimpleQueue[tuple[Site, Site]] = SimpleQueue()
        for number in range(count):
            home = Path(folder) / str(number)
            once = stack.enter_context(fault_site(home / "once"))
            twice = stack.enter_context(fault_site(home / "twice", serving={"max_attempts": 2}))
            free.put((once, twice))
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda case: _row(case, free), cases))


def _row(case: Case, free: SimpleQueue[tuple[Site, Site]]) -> Row:
    sites = free.get()
    try:
        print(f"faults: {case.name}", file=sys.stderr, flush=True)
        once, twice = asyncio.run(_both(case, sites))
    finally:
        free.put(sites)
    wrong = [f"{case.name}: {words}" for words in breaches(once)]
    wrong += [f"{case.name}, two attempts: {words}" for words in breaches(twice)]
    return Row(table.row(case.name, case.targets(), once, twice), wrong)


async def _both(case: Case, sites: tuple[Site, Site]) -> tuple[Seen, Seen]:
    once, twice = await asyncio.gather(*(_tried(case, site) for site in sites))
    return once, twice


async def _tried(case: Case, site: Site) -> Seen:
    for _ in range(TRIES):
        seen = await play(site, *case.switches)
        if not seen.stood_still:
            break
    return seen


if __name__ == "__main__":
    sys.exit(main())
