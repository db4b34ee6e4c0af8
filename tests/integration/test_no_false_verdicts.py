"""No healthy engine is thrown out by what clients do, by back-pressure, or by what is our own fault."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.play import TAKES_OUT
from tests.faults.site import MONITOR_S, SECTIONS, Site, fault_site
from tests.support.crowd import Viewer, all_over, view
from tests.support.journal_tail import JournalTail
from tests.support.load import WHOLE, Load, ask_for
from tests.support.processes import eventually
from tests.support.router import fleet_document, router_process
from tests.support.wire import ask, play

MAX_MODEL_LEN = 32768
PASSES_S = 5 * MONITOR_S
"""Long enough for what is owed to be asked and for several sweeps."""
WRITTEN_S = 0.5
"""The journal is written a moment behind."""


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fault_site(Path(tmp_path_factory.mktemp("router")) / "site") as site:
        yield site


@pytest.fixture
def site(standing: Site) -> Site:
    asyncio.run(standing.heal())
    standing.tail.read()
    return standing


@dataclass
class Verdicts:
    """Enforced verdicts told since the last look; `ejections` are those that throw an engine out."""

    rows: list[dict[str, Any]]

    @property
    def ejections(self) -> list[str]:
        return [row["reason"] for row in self.rows if row["kind"] == "ejection"]

    @property
    def holds(self) -> list[str]:
        return [row["reason"] for row in self.rows if row["kind"] == "hold"]


def verdicts(site: Site, *, after_s: float = PASSES_S) -> Verdicts:
    """What was judged, once everything that is owed had time to be asked."""
    time.sleep(after_s)
    rows = [row for row in site.tail.read() if row["kind"] in TAKES_OUT and row["enforced"]]
    return Verdicts(rows)


def everybody_serves(site: Site) -> None:
    """Nobody is out, and every request of a small load is served."""
    eventually(lambda: not site.out(), what=f"everybody is in again: {site.out()}")
    assert [one.how for one in play(small_load(site)) if one.how != WHOLE] == []


async def small_load(site: Site) -> list[Any]:
    async with Load(site.router.url, f"after-{time.monotonic_ns()}", rate=30.0, tokens=3) as load:
        await asyncio.sleep(0.6)
    return load.got


async def send(site: Site, body: Any, times: int) -> list[int]:
    """The statuses of that many requests, eight at a time."""
    seats = asyncio.Semaphore(8)

    async def one() -> int:
        async with seats:
            return (await ask(site.router.url, "/v1/completions", body=body)).status

    return await asyncio.gather(*(one() for _ in range(times)))


async def send_different(site: Site, times: int, **fields: Any) -> list[int]:
    bodies = [{"prompt": f"question {number}", **fields} for number in range(times)]
    answers = [await ask(site.router.url, "/v1/completions", body=body) for body in bodies]
    return [answer.status for answer in answers]


def test_over_long_prompts(site: Site) -> None:
    statuses = play(send_different(site, 40, max_tokens=MAX_MODEL_LEN))
    assert set(statuses) == {400}
    found = verdicts(site)
    assert found.ejections == []
    held = [row["iid"] for row in found.rows if row["kind"] == "hold"]
    assert len(held) == len(set(held)), f"one was held again: {found.holds}"
    everybody_serves(site)


def test_over_long_prompts_between_good_requests_do_not_even_hold(site: Site) -> None:
    async def scene() -> None:
        async with Load(site.router.url, "good", rate=60.0, tokens=2) as load:
            assert set(await send_different(site, 20, max_tokens=MAX_MODEL_LEN)) == {400}
        assert [one for one in load.got if one.how != WHOLE] == []

    play(scene())
    assert verdicts(site).ejections == []
    everybody_serves(site)


def test_parameters_that_are_no_numbers(site: Site) -> None:
    body = b'{"prompt": "how warm?", "max_tokens": 2, "temperature": NaN}'
    assert set(play(send(site, body, 40))) == {400}
    found = verdicts(site)
    assert (found.ejections, found.holds) == ([], [])
    everybody_serves(site)


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("status", [403, 404, 451])
def test_one_request_that_every_engine_refuses(site: Site, leg: str, status: int) -> None:
    """As a filter before them may, however often its client asks and whoever else does."""
    for engine in site.engines.engines:
        engine.order("status", leg=leg, status=status, match="hemlock")
    statuses = play(send(site, {"prompt": "a cup of hemlock, please", "max_tokens": 2}, 24))
    assert set(statuses) == {502}
    found = verdicts(site)
    assert (found.ejections, found.holds) == ([], [])
    everybody_serves(site)


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_bursts_of_429(site: Site, leg: str) -> None:
    for engine in site.engines.engines:
        engine.order("status", leg=leg, status=429, retry_after=1, count=15)
    statuses = play(send_different(site, 60, max_tokens=2))
    assert set(statuses) <= {200, 429}
    found = verdicts(site)
    assert (found.ejections, found.holds) == ([], [])
    for engine in site.engines.engines:
        engine.clear()
    eventually(lambda: set(play(send_different(site, 4, max_tokens=2))) == {200}, what="served again")
    everybody_serves(site)


def test_a_slow_health_while_streams_go_on(site: Site) -> None:
    """Both decode engines stream the whole time; the prefill engines answer in time."""

    async def scene() -> list[Viewer]:
        bodies = [{"prompt": f"long story {n}", "max_tokens": 600, "stream": True} for n in range(6)]
        viewers = [await view(site.router.url, body) for body in bodies]
        await asyncio.gather(*(viewer.begun for viewer in viewers))
        for iid in ("e2", "e3"):
            site.engine(iid).order("slow", leg="health", seconds=60)
        await all_over(viewers)
        return viewers

    viewers = play(scene())
    assert all(viewer.complete for viewer in viewers)
    found = verdicts(site, after_s=WRITTEN_S)
    assert (found.ejections, found.holds) == ([], [])
    site.clear()
    everybody_serves(site)


def test_a_client_that_leaves_a_thousand_times(site: Site) -> None:
    async def leaves(number: int, dice: random.Random, seats: asyncio.Semaphore) -> None:
        async with seats:
            body = {"prompt": f"leaver {number}", "max_tokens": 300, "stream": dice.random() < 0.7}
            viewer = await view(site.router.url, body)
            await asyncio.sleep(dice.uniform(0.0, 0.08))
            viewer.leave()
            await viewer.over

    async def scene() -> None:
        dice, seats = random.Random(1), asyncio.Semaphore(40)
        await asyncio.gather(*(leaves(number, dice, seats) for number in range(1000)))

    play(scene(), within_s=120.0)
    site.router.becomes_idle()
    found = verdicts(site)
    assert (found.ejections, found.holds) == ([], [])
    assert site.router.state()["breaker"]["failures"] == {}
    everybody_serves(site)


POISONS = [
    {"fault": "status", "status": 500},
    {"fault": "error_in_200"},
    {"fault": "abort", "after": 0},
    {"fault": "rst"},
    {"fault": "silent_first_token"},
]


@pytest.mark.parametrize("where", [{}, {"leg": "decode"}], ids=["counts and legs", "decodes"])
@pytest.mark.parametrize("poison", POISONS, ids=lambda order: order["fault"])
def test_one_poisoned_request_sent_to_all(site: Site, where: dict[str, str], poison: dict[str, Any]) -> None:
    """The same body by twelve clients, while others are served; then the engines' own probes are good."""
    for engine in site.engines.engines:
        engine.order(match="hemlock", **where, **poison)
    body = {"prompt": "a cup of hemlock, please", "max_tokens": 4, "stream": True}

    async def scene() -> tuple[list[int], Load]:
        async with Load(site.router.url, "others", rate=20.0, tokens=2) as load:
            statuses = await send(site, body, 12)
            await asyncio.sleep(PASSES_S)
        return statuses, load

    statuses, load = play(scene())
    assert set(statuses) <= {500, 502, 504}
    assert verdicts(site, after_s=WRITTEN_S).ejections == []
    assert [one for one in load.got if one.how != WHOLE] == []
    everybody_serves(site)


# --- our own faults ---------------------------------------------------------------------------------


@contextmanager
def second_router(site: Site, folder: Path, *options: str, **changes: dict[str, Any]) -> Iterator[Site]:
    """Another router without a store in front of the same engines."""
    sections = {name: {**SECTIONS.get(name, {}), **changes.get(name, {})} for name in {*SECTIONS, *changes}}
    fleet = fleet_document(site.engines.engines, **sections)
    with router_process(folder, fleet, *options) as router:
        second = Site(router, site.engines, JournalTail(folder / "journal.jsonl"))
        second.tail.read()
        yield second


def test_our_own_data_pool_exhausted(site: Site, tmp_path: Path) -> None:
    changes = {"serving": {"max_connections": 4}, "engine": {"pool_timeout_s": 0.1}}
    with second_router(site, tmp_path / "router", "--max-concurrent", "60", **changes) as second:

        async def scene() -> list[str]:
            prompts = [f"pool {number}" for number in range(40)]
            url = second.router.url
            return await asyncio.gather(
                *(ask_for(url, prompt, prompt, tokens=60, stream=True) for prompt in prompts)
            )

        hows = play(scene())
        assert any(how.startswith("504") for how in hows), hows
        found = verdicts(second)
        assert (found.ejections, found.holds) == ([], [])
        assert second.router.state()["breaker"]["failures"] == {}


def test_our_own_control_pool_exhausted(site: Site, tmp_path: Path) -> None:
    """One seat for all probes, and an engine whose /health keeps it: the others are not to blame."""
    changes = {"engine": {"control_connections": 1, "pool_timeout_s": 0.2}}
    with second_router(site, tmp_path / "router", **changes) as second:
        site.engine("e0").order("hang", leg="health")
        time.sleep(2 * PASSES_S)
        blamed = [row["iid"] for row in second.tail.read() if row["kind"] in TAKES_OUT and row["enforced"]]
        assert set(blamed) <= {"e0"}
        site.clear()


def test_our_loop_blocked_for_1_4_s(site: Site) -> None:
    """Longer than the first-token, silence, health and prefill limits of this router."""
    assert all(SECTIONS["engine"][name] < 1.4 for name in ("first_token_timeout_s", "decode_read_timeout_s"))

    async def scene() -> list[Any]:
        async with Load(site.router.url, "blocked", rate=30.0, tokens=40) as load:
            for _ in range(3):
                await asyncio.sleep(0.7)
                os.kill(site.router.pid, signal.SIGSTOP)
                await asyncio.sleep(1.4)
                os.kill(site.router.pid, signal.SIGCONT)
            await asyncio.sleep(0.7)
        return load.got

    play(scene())
    found = verdicts(site)
    assert (found.ejections, found.holds) == ([], [])
    everybody_serves(site)
