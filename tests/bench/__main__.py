"""Entry of `make bench`: `python -m tests.bench [--peers] [--rounds N] [--json PATH] [mode ...]`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench import modes_cost, modes_size, modes_time
from tests.bench.processes import LOAD_CORE, ROOT, build
from tests.bench.results import Section, machine, tables, write, write_into

MODES: dict[str, Callable[[int, bool], Section]] = {
    "frame": modes_cost.frame,
    "request": modes_cost.request,
    "first-frame": modes_time.first_frame,
    "memory": modes_size.memory,
    "flatness": modes_cost.flatness,
    "busy": modes_time.busy,
    "monitor": modes_time.monitor_pass,
    "start": modes_time.start_up,
    "placement": modes_size.placement,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("modes", nargs="*", metavar="mode", help=f"of {', '.join(MODES)} (default: all)")
    parser.add_argument("--peers", action="store_true", help="install and measure vllm-router and smg too")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs (default 3)")
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/results.json")
    parser.add_argument("--doc", action="store_true", help="write the table into docs/performance.md")
    options = parser.parse_args()
    if unknown := set(options.modes) - set(MODES):
        parser.error(f"unknown mode {', '.join(sorted(unknown))}: known are {', '.join(MODES)}")
    build()
    os.sched_setaffinity(0, {LOAD_CORE})
    sections = []
    for name in options.modes or MODES:
        print(f"bench: {name}", file=sys.stderr, flush=True)
        sections.append(MODES[name](options.rounds, options.peers))
        write(options.json, sections)
    found = "\n".join(f"* {key}: {value}" for key, value in machine().items()) + "\n\n" + tables(sections)
    print(found)
    if options.doc:
        write_into(ROOT / "docs/performance.md", found)
    missed = [one for section in sections for one in section.verdicts if one.word == "MISSED"]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
