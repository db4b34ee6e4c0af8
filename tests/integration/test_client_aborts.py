"""Clients that go away at any moment leave nothing behind, however many they are."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.crowd import view
from tests.support.engines import EngineProcess, engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Wire, ask, play, request_bytes

CLIENTS = 2000
AT_ONCE = 50
GROWTH_BYTES = 5 << 20
NO_SWEEPS = {"liveness_every": 0}
"""A sweep leaves connections for 4 s too: behind those of a crowd nothing would ever be at rest."""
IN_LINE = 600
"""Clients of the crowded router."""
OUTCOMES = ("served", "failed", "refused", "rejected", "expired", "cancelled", "invalid_requests")


@dataclass(frozen=True, slots=True)
class Site:
    router: Router
    engines: EngineProcess


@contextmanager
def standing(folder: Path, *options: str, **sections: Any) -> Iterator[Site]:
    with engine_process(4, "--prefill", "0.02", "--interval", "0.01") as engines:
        fleet = fleet_document(engines.engines, recovery=NO_SWEEPS, **sections)
        with router_process(folder, fleet, *options, module="tests.support.counted_router") as router:
            yield Site(router, engines)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(Path(tmp_path_factory.mktemp("router"))) as site:
        yield site


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Site]:
    """A router with far fewer places than clients: most of them leave while they wait in line."""
    queue = {"queue_capacity": 2 * AT_ONCE, "queue_timeout_s": 60.0}
    with standing(tmp_path, "--max-concurrent", "4", serving=queue) as site:
        yield site


async def leaves_in_its_head(url: str, dice: random.Random, body: Any) -> None:
    whole = request_bytes("POST", "/v1/completions", body=body)
    wire = await Wire.open(url)
    await wire.send(whole[: dice.randrange(1, len(whole))])
    wire.close()


async def leaves_after_a_while(url: str, dice: random.Random, body: Any) -> None:
    """Anywhere from the first leg's dispatch to the middle of the stream."""
    viewer = await view(url, body)
    await asyncio.sleep(dice.uniform(0.0, 0.08))
    viewer.leave()
    await viewer.over


async def leaves_in_its_stream(url: str, dice: random.Random, body: Any) -> None:
    viewer = await view(url, {**body, "stream": True})
    await viewer.begun
    await asyncio.sleep(dice.uniform(0.0, 0.05))
    viewer.leave()
    await viewer.over


async def abort_many(url: str, seed: int, clients: int = CLIENTS) -> None:
    dice = random.Random(seed)
    seats = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> None:
        body = {
            "prompt": f"client {index} of run {seed}",
            "max_tokens": 400,
            "stream": dice.random() < 0.7,
            "return_token_ids": dice.random() < 0.3,
        }
        ways = (leaves_in_its_head, leaves_after_a_while, leaves_in_its_stream)
        (leave,) = dice.choices(ways, weights=(1, 5, 4))
        async with seats:
            await leave(url, dice, body)

    async with asyncio.TaskGroup() as group:
        for index in range(clients):
            group.create_task(one(index))


@dataclass(frozen=True, slots=True)
class Left:
    """What is left when everybody has gone."""

    memory_bytes: int
    descriptors: int
    tasks: int
    seats_in_use: tuple[int, ...]


def left_behind(site: Site) -> Left:
    """At rest: idle connections to engines are let go after 4 s and a monitor pass opens some for moments,
    so the least of 6 s is taken."""
    router = site.router
    descriptors, tasks = [], []
    for _ in range(30):
        descriptors.append(router.descriptors())
        tasks.append(router.tasks())
        time.sleep(0.2)
    seats = tuple(pool["busy"] + pool["waiting"] for pool in router.state()["http_pools"].values())
    return Left(router.memory_bytes(), min(descriptors), min(tasks), seats)


def test_two_thousand_clients_that_leave_are_gone_within_a_second_and_cost_nothing(site: Site) -> None:
    left = []
    for seed in (1, 2):
        play(abort_many(site.router.url, seed), within_s=120.0)
        site.router.becomes_idle(within_s=1.0)
        site.engines.becomes_idle(within_s=1.0)
        left.append(left_behind(site))
    first, second = left
    assert second.memory_bytes - first.memory_bytes <= GROWTH_BYTES
    assert second.descriptors == first.descriptors
    assert second.tasks == first.tasks
    assert set(second.seats_in_use) == set(first.seats_in_use) == {0}


def test_they_count_as_cancelled_and_are_in_the_journal(site: Site) -> None:
    state = site.router.state()
    assert state["cancelled"] > CLIENTS
    assert state["failed"] == 0
    assert state["offered"] == sum(state[name] for name in OUTCOMES)
    assert sum(stats["aborted"] for stats in site.engines.all_stats()) > CLIENTS / 4
    assert "Traceback" not in site.router.process.output, site.router.process.output


def test_so_are_those_that_waited_in_line(crowded: Site) -> None:
    router = crowded.router
    before = router.tasks()
    play(abort_many(router.url, 3, IN_LINE), within_s=120.0)
    router.becomes_idle(within_s=1.0)
    crowded.engines.becomes_idle(within_s=1.0)
    state = router.state()
    admission = state["admission"]
    assert (admission["inflight"], admission["queued"]) == (0, 0)
    assert admission["queue_high_water"] > 4
    assert (state["failed"], state["rejected"]) == (0, 0)
    assert state["offered"] == sum(state[name] for name in OUTCOMES)
    waited = [row for row in router.journal() if row.get("terminal") == "cancelled" and row["queue_wait_s"]]
    assert len(waited) > IN_LINE / 10
    assert left_behind(crowded).tasks <= before
    served = play(ask(router.url, "/v1/completions", body={"prompt": "after them", "max_tokens": 2}))
    assert served.status == 200, "every place came back"
    assert "Traceback" not in router.process.output, router.process.output
