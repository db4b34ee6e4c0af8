"""Rows on a cluster, each run several times: the fault, the takeover, what clients and probers saw."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from narwhal.cli.drill.machines import until
from narwhal.cli.drill.prober import EVERY_S, HURRY_S, Prober
from narwhal.cli.drill.rows import Row
from narwhal.cli.drill.stage import Needs, Setting, Stage, staged
from narwhal.cli.drill.traffic import Books, Load, Traffic
from narwhal.cli.witness import Yes

RENEW_S: Final = 1.0
SETTLE_S: Final = 2.5
"""After a fault that nobody should notice: two renewals must have gone through."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One run. `at`: the fault (monotonic seconds); `over`: when it was behind us. `detected_at`: when the
    record was first no more the old owner's; `taken`: the successor's first yes; None where there was none.
    `renewed_at`: when the old owner's last renewal was seen."""

    at: float
    over: float
    owners: tuple[str, str]
    epochs: tuple[int, int]
    renewed_at: float
    detected_at: float | None = None
    taken: Yes | None = None

    @property
    def takeover_s(self) -> float | None:
        return None if self.taken is None else self.taken.told - self.at

    @property
    def detection_s(self) -> float | None:
        return None if self.detected_at is None else self.detected_at - self.at


@dataclass(slots=True)
class Outcome:
    """What came of a row. `counted`: served requests that the routers' totals grew by."""

    name: str
    row: Row
    behind_balancer: bool = False
    shots: list[Shot] = field(default_factory=list)
    books: Books = field(default_factory=Books)
    sent: int = 0
    rate: float = 0.0
    counted: int = 0
    yeses: list[Yes] = field(default_factory=list)
    probes: int = 0
    trouble: str = ""
    log: dict[str, list[str]] = field(default_factory=dict)
    """What each router wrote meanwhile, by its name."""


@dataclass(frozen=True, slots=True)
class Ears:
    """Who is told: `say` takes a line for people, `take` each row's outcome as it comes."""

    say: Callable[[str], None]
    take: Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """`slack_s`: how much longer than its goal a takeover may take on a busy machine."""

    setting: Setting
    load: Load
    runs: int = 1
    slack_s: float = 1.0


async def run_rows(rows: Mapping[str, Row], plan: Plan, *, folder: Path, ears: Ears) -> None:
    """All rows, those that need the same on one cluster. Raises StartFailed."""
    for number, group in enumerate(_groups(rows)):
        left = list(group.items())
        while left:
            place = folder / f"{number}-{len(left)}"
            async with staged(place, plan.setting, needs=_together(row.needs for _, row in left)) as stage:
                while left:
                    name, row = left.pop(0)
                    ears.say(f"{name}: {row.event}")
                    outcome = await run_on(stage, name, row=row, plan=plan, say=ears.say)
                    ears.take(outcome)
                    if outcome.trouble:
                        break  # the next row gets a cluster that is whole


def _groups(rows: Mapping[str, Row]) -> list[dict[str, Row]]:
    """Doors and fail-safe would change what other rows measure; replicas matter to nobody else."""
    groups: dict[tuple[bool, bool], dict[str, Row]] = {}
    for name, row in rows.items():
        groups.setdefault((row.needs.doors, row.needs.failsafe), {})[name] = row
    return list(groups.values())


def _together(needs: Iterable[Needs]) -> Needs:
    every = list(needs)
    return Needs(
        own_store=any(one.own_store for one in every),
        doors=any(one.doors for one in every),
        replicas=max(one.replicas for one in every),
        warden=any(one.warden for one in every),
        failsafe=any(one.failsafe for one in every),
    )


async def run_on(stage: Stage, name: str, *, row: Row, plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Never raises for what the cluster did: `trouble` tells what did not come about."""
    outcome = Outcome(name, row, behind_balancer=bool(stage.front))
    probers = [Prober(router.url) for router in stage.routers]
    try:
        await stage.whole()
        await _under_load(stage, outcome, plan=plan, probers=probers, say=say)
    except (TimeoutError, RuntimeError) as error:
        conditions = ", ".join(router.condition for router in stage.routers)
        outcome.trouble = f"{str(error) or type(error).__name__} ({conditions})"
    finally:
        for prober in probers:
            await prober.stop()
            outcome.yeses += prober.yeses
            outcome.probes += prober.asked
    return outcome


async def _under_load(
    stage: Stage, outcome: Outcome, *, plan: Plan, probers: Sequence[Prober], say: Callable[[str], None]
) -> None:
    before, lines = await _settled(stage), _log_lines(stage)
    urls = [stage.front] if stage.front else [router.url for router in stage.routers]
    traffic = Traffic(urls, plan.load, retries=not stage.front)
    outcome.books = traffic.books
    async with traffic:
        await asyncio.sleep(min(2.0, plan.load.stream_s + 0.5))
        for number in range(plan.runs):
            if number:
                await stage.whole()
            # Anywhere between two renewals: what a silent death takes depends on it.
            await asyncio.sleep(0.3 + random.uniform(0.0, RENEW_S))
            shot = await _shoot(stage, outcome.row, plan=plan, probers=probers)
            outcome.shots.append(shot)
            say(f"  {_told(number + 1, shot)}")
        await asyncio.sleep(1.0)
    outcome.sent, outcome.rate = traffic.sent, traffic.rate
    await stage.whole()  # a router that was cut off has counts of its own to bring
    outcome.counted = await _settled(stage) - before
    outcome.log = {name: found[len(lines[name]) :] for name, found in _log_lines(stage).items()}


async def _shoot(stage: Stage, row: Row, *, plan: Plan, probers: Sequence[Prober]) -> Shot:
    old, at = stage.lease, time.monotonic()
    act = asyncio.create_task(row.act(stage))
    taken: Yes | None = None
    if row.goal_s is None:
        await act
        await asyncio.sleep(SETTLE_S)
    else:
        taken = await _taken(probers, at, epoch=old.epoch, within_s=row.goal_s + plan.slack_s + 30.0)
        await act
        await _seen(stage, old.epoch)
    assert stage.watch is not None
    return Shot(
        at=at,
        over=time.monotonic(),
        owners=(old.owner, stage.lease.owner),
        epochs=(old.epoch, stage.lease.epoch),
        renewed_at=stage.watch.last_change_of(old.token) or old.at,
        detected_at=None if taken is None else stage.watch.left(old.token, after=at),
        taken=taken,
    )


async def _taken(probers: Sequence[Prober], at: float, *, epoch: int, within_s: float) -> Yes:
    """The first yes of a higher epoch. Raises TimeoutError. The probers hurry for the first second."""
    for prober in probers:
        prober.every_s = HURRY_S
    try:
        while time.monotonic() < at + within_s:
            for prober in probers:
                if time.monotonic() > at + 1.0:
                    prober.every_s = EVERY_S
                if yes := prober.first_yes(after=at, epoch=epoch):
                    return yes
            await asyncio.sleep(0.005)
    finally:
        for prober in probers:
            prober.every_s = EVERY_S
    raise TimeoutError(f"no router was ready within {within_s:g} s of the fault")


async def _seen(stage: Stage, epoch: int) -> None:
    """Until our own look at the record has the new epoch too."""

    async def newer() -> bool:
        return stage.lease.epoch > epoch

    await until(newer, what="the record with the new epoch", within_s=10.0)


async def _served(stage: Stage) -> int:
    """What all runs together count as served, from the store."""
    async with stage.client() as client:
        runs = await client.hvals(f"narwhal:{{{stage.cluster}}}:totals")
    return sum(int(json.loads(text).get("served", 0)) for text in runs)


async def _settled(stage: Stage) -> int:
    """The same when it has stood still for half a second: flushes are late by 50 ms."""
    last, still = await _served(stage), 0
    async with asyncio.timeout(30.0):
        while still < 5:
            await asyncio.sleep(0.1)
            now = await _served(stage)
            still = still + 1 if now == last else 0
            last = now
    return last


def _log_lines(stage: Stage) -> dict[str, list[str]]:
    return {router.name: router.log.read_text(errors="replace").splitlines() for router in stage.routers}


def _told(number: int, shot: Shot) -> str:
    if shot.takeover_s is None:
        return f"run {number}: {shot.owners[1]} owns epoch {shot.epochs[1]} still"
    return f"run {number}: {shot.owners[0]} -> {shot.owners[1]} in {shot.takeover_s:.3f} s"
