"""Seeded runs of a whole cluster under mixed faults. `python -m tests.simulation.campaign --seeds 300`.

A failure prints its seed; the same seed gives the same trace, in any process.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from narwhal.model.settings import LeaseTimings
from narwhal.policy.election import Election
from narwhal.store.memory import MemoryCheckpoint
from tests.simulation.checkers import Checkers, Violation
from tests.simulation.faults import FAULTS, Mischief
from tests.simulation.network import Network
from tests.simulation.routers import Host, SimRouter
from tests.support.virtual_time import VirtualLoop

QUIET_S = 22.0
"""No new fault in the last part of a run: by its end the cluster must have healed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: `duration_s` virtual seconds with three routers; `faults` names what may happen."""

    seed: int
    duration_s: float = 66.0
    faults: tuple[str, ...] = tuple(FAULTS)
    mixed_ttl: bool = True
    election: type[Election] = Election


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    digest: str
    openings: int
    owned_s: float
    counted: int
    steps: int
    trace: tuple[str, ...]
    error: str = ""


class World:
    """Three hosts, one store, one clock."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = VirtualLoop()
        self.rng = random.Random(plan.seed)
        self.net = Network(self.loop, self.rng)
        self.lives: list[SimRouter] = []
        self.lines: list[str] = []
        self.owned_s = 0.0
        self.unexpected: list[str] = []
        self.latest: dict[str, SimRouter] = {}
        self.checkers = Checkers(
            lambda: self.lives, self.latest.values, data=lambda: self.net.store.server.data
        )
        self.hosts = {name: self._host(name) for name in ("a", "b", "c")}

    def _host(self, name: str) -> Host:
        ttl = 8.0 if self.plan.mixed_ttl and self.rng.random() < 0.15 else 5.0
        return Host(
            name=name,
            rate=1.0 + self.rng.uniform(-0.02, 0.02),
            offset_s=self.rng.uniform(0.0, 1e6),
            timings=replace(LeaseTimings(), ttl_s=ttl),
            checkpoint=MemoryCheckpoint(),
            prefer_standby=self.rng.random() < 0.2,
            election=self.plan.election,
        )

    def trace(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():.6f} {line}")

    def spawn(self, name: str) -> SimRouter:
        router = SimRouter(self.hosts[name], self.net, life=len(self.lives), trace=self.trace)
        self.lives.append(router)
        self.latest[name] = router
        router.start()
        return router

    def current(self) -> dict[str, SimRouter]:
        """The latest life of each host."""
        return dict(self.latest)

    async def live(self) -> None:
        self.loop.on_step = self.checkers.after_event
        self.net.on_applied = self.checkers.after_write
        for name in self.hosts:
            self.net.at(self.rng.uniform(0.0, 1.0), self.spawn, name)
        mischief = Mischief(self)
        busy_until = self.plan.duration_s - QUIET_S
        next_fault = 8.0
        while self.loop.time() < self.plan.duration_s:
            await asyncio.sleep(0.5)
            self.checkers.counters()
            self.owned_s += 0.5 * any(router.admits() for router in self.lives)
            if next_fault <= self.loop.time() < busy_until:
                next_fault = self.loop.time() + self.rng.uniform(1.5, 9.0)
                mischief.strike(self.rng.choice(self.plan.faults))
        self._judge_end()

    def _judge_end(self) -> None:
        if not any(router.admits() for router in self.lives):
            raise Violation("I10: nobody owns after the quiet time")
        stored = self.checkers.stored()
        for router in self.lives:
            if router.alive and router.counted - stored.get(router.run, 0) > 60:
                raise Violation(f"I4: {router.run} counted {router.counted}, stored {stored}")
        if self.unexpected:
            raise Violation(f"unexpected: {self.unexpected[0]}")

    def run(self) -> Outcome:
        error = ""
        quiet = [logging.getLogger(name) for name in ("asyncio", "narwhal.cluster")]
        for logger in quiet:
            logger.disabled = True
        self.loop.set_exception_handler(self._note)
        try:
            self.loop.run(self.live())
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        finally:
            strands = [strand for router in self.lives for strand in router.strands]
            self.loop.set_exception_handler(lambda loop, context: None)
            self.loop.bury(strands)
            self.loop.close()
            for logger in quiet:
                logger.disabled = False
        digest = hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
        counted = sum(router.counted for router in self.lives)
        return Outcome(
            seed=self.plan.seed,
            digest=digest,
            openings=self.checkers.openings,
            owned_s=self.owned_s,
            counted=counted,
            steps=self.loop.steps,
            trace=tuple(self.lines),
            error=error,
        )

    def _note(self, loop: object, context: dict[str, object]) -> None:
        self.unexpected.append(f"{context.get('message')}: {context.get('exception')!r}")


def simulate(plan: Plan) -> Outcome:
    return World(plan).run()


def _bare(plan: Plan) -> Outcome:
    outcome = simulate(plan)
    return outcome if outcome.error else replace(outcome, trace=())


def campaign(plans: Iterable[Plan], *, processes: int = 0) -> list[Outcome]:
    """Runs all plans on `processes` processes (0 = one per core)."""
    wanted = processes or len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(wanted) as pool:
        return list(pool.imap_unordered(_bare, plans, chunksize=4))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds (default 300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--duration", type=float, default=66.0, help="virtual seconds a seed (default 66)")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="only these faults")
    parser.add_argument("--trace", action="store_true", help="print the trace of each seed that fails")
    options = parser.parse_args(argv)
    faults = tuple(options.fault or FAULTS)
    seeds = range(options.first, options.first + options.seeds)
    began = time.monotonic()
    outcomes = campaign(Plan(seed, options.duration, faults) for seed in seeds)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in sorted(failed, key=lambda one: one.seed):
        print(f"seed {outcome.seed}: {outcome.error}")
        if options.trace:
            print("\n".join(outcome.trace))
    owned = sum(outcome.owned_s for outcome in outcomes) / (len(outcomes) * options.duration)
    openings = sum(outcome.openings for outcome in outcomes)
    print(
        f"{len(outcomes)} seeds of {options.duration:g} virtual s in {time.monotonic() - began:.1f} s: "
        f"{len(failed)} failed; {openings} ownerships, owned {owned:.0%} of the time"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
