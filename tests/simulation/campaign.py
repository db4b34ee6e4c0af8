"""Seeded runs of whole clusters, class by class. `python -m tests.simulation.campaign --seeds 200`.

A failure prints its class, its seed and the command that runs it again; the same seed gives the same
trace, in any process.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tests.simulation.classes import CLASSES
from tests.simulation.world import Outcome, Plan, simulate


def replay(outcome: Outcome) -> str:
    """The command that runs it again."""
    return (
        f"python -m tests.simulation.campaign --class {outcome.kind} --first {outcome.seed} --seeds 1 --trace"
    )


def told(failed: Iterable[Outcome]) -> str:
    """Failures for people, each with the command that replays it."""
    ordered = sorted(failed, key=lambda outcome: (outcome.kind, outcome.seed))
    return "\n".join(
        f"class {one.kind}, seed {one.seed}: {one.error}\n  again with: {replay(one)}" for one in ordered
    )


def _quietly() -> None:
    """A process of runs leaves the cores to whoever measures time, and collects between runs: half of what
    they allocate is cyclic, and looking for it in their midst costs a tenth."""
    os.nice(10)
    gc.freeze()
    gc.disable()


def _bare(plan: Plan) -> tuple[Outcome, float]:
    began = time.process_time()
    outcome = simulate(plan)
    gc.collect()
    cost_s = time.process_time() - began
    return (outcome if outcome.error else replace(outcome, trace=())), cost_s


@dataclass(frozen=True, slots=True)
class Campaign:
    """`cost_s` is the processor time of all runs together, start of the processes aside."""

    outcomes: tuple[Outcome, ...]
    cost_s: float

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.error)

    def of(self, kind: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.kind == kind]


def campaign(plans: Iterable[Plan], *, processes: int = 0) -> Campaign:
    """Runs all plans on `processes` processes (0 = one per core)."""
    wanted = processes or len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(wanted, _quietly) as pool:
        done = list(pool.imap_unordered(_bare, plans, chunksize=8))
    return Campaign(tuple(outcome for outcome, _ in done), sum(cost_s for _, cost_s in done))


def table(done: Campaign) -> str:
    """One row a class: what happened, so that a class in which nothing happens shows."""
    lines = [f"{'class':22} {'seeds':>6} {'failed':>6} {'owners':>7} {'owned':>6} {'healed max':>10}"]
    for kind in CLASSES:
        if not (runs := done.of(kind)):
            continue
        failed = sum(bool(run.error) for run in runs)
        owners, owned = fmean(run.openings for run in runs), fmean(run.owned for run in runs)
        healed = max(run.healed_s for run in runs)
        lines.append(f"{kind:22} {len(runs):6} {failed:6} {owners:7.2f} {owned:6.0%} {healed:8.1f} s")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds of each class (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--class", dest="kinds", action="append", choices=list(CLASSES), help="only this class, repeatable"
    )
    parser.add_argument("--processes", type=int, default=0, help="how many processes (default: one a core)")
    parser.add_argument("--trace", action="store_true", help="print the trace of each seed that fails")
    options = parser.parse_args(argv)
    kinds = options.kinds or list(CLASSES)
    seeds = range(options.first, options.first + options.seeds)
    began = time.monotonic()
    done = campaign((Plan(seed, kind) for kind in kinds for seed in seeds), processes=options.processes)
    if options.trace:
        print("\n".join(line for outcome in done.failed for line in outcome.trace))
    print(table(done))
    print(told(done.failed))
    each_ms = 1000 * done.cost_s / max(1, len(done.outcomes))
    print(f"{len(done.outcomes)} runs in {time.monotonic() - began:.1f} s, {each_ms:.0f} ms of a core each")
    return 1 if done.failed else 0


if __name__ == "__main__":
    sys.exit(main())
