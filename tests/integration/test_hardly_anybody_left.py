"""Whole fleets that fail, and fleets in which one half fails and takes the other half with it, or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.judge import dispatched_too_late, lost_beyond
from tests.faults.play import Seen, read_journal, until
from tests.faults.rules import BACK_PASSES, PROBE_PASSES
from tests.faults.site import Site, fault_site
from tests.faults.switches import legs, whole
from tests.support.load import WHOLE, Got, Load

EVERYBODY = ("e0", "e1", "e2", "e3")
OUT_S = 20.0
BACK_S = 20.0
FOR_A_WHILE_S = 2.0
NOBODY_THERE = "503 backend_unavailable"
LABEL = "few"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """New for each test: an engine that floor repair has moved keeps its new role."""
    with fault_site(tmp_path / "site") as site:
        asyncio.run(site.heal())
        yield site


async def under_load(site: Site, orders: list[dict[str, Any]], *, on: tuple[str, ...], out: set[str]) -> Load:
    """Orders, waits until `out` are ejected and a while longer, repairs, waits until all are back."""
    async with Load(site.router.url, LABEL, rate=24.0, tokens=10) as load:
        await asyncio.sleep(0.4)
        for iid in on:
            for order in orders:
                await asyncio.to_thread(lambda iid=iid, order=order: site.engine(iid).order(**order))
        assert await until(lambda: out <= set(ejected(site)), OUT_S), site.out()
        await asyncio.sleep(FOR_A_WHILE_S)
        assert set(ejected(site)) == out
        site.clear()
        assert await passes_until_all_are_back(site) <= BACK_PASSES + PROBE_PASSES
        await asyncio.sleep(0.5)
    return load


async def passes_until_all_are_back(site: Site) -> int:
    """Monitor passes from now to the last look that found anybody out."""
    began, passes = site.passes(), [0]

    def look() -> bool:
        before = site.passes() - began
        if not site.out():
            return True
        passes.append(before)
        return False

    assert await until(look, BACK_S), site.out()
    return passes[-1]


def ejected(site: Site) -> list[str]:
    return [iid for iid, word in site.out().items() if word == "ejected"]


def hows(got: list[Got]) -> set[str]:
    return {one.how for one in got}


def costs_the_streaks_alone(site: Site, got: list[Got], *, of: tuple[str, ...]) -> None:
    """Nobody was turned away, and each of the ill failed as many as prove it and those then in flight."""
    assert NOBODY_THERE not in hows(got)
    seen = Seen((), got=got)
    asyncio.run(read_journal(site, seen, LABEL))
    assert {row["client_rid"] for row in seen.rows} == {one.rid for one in got}
    for iid in of:
        assert lost_beyond(seen, iid) == []
        assert dispatched_too_late(seen, iid) == []


@pytest.mark.parametrize(
    "orders",
    [
        legs("prefill", "status", status=500) + legs("decode", "status", status=500),
        whole("refuse"),
        whole("core_dead"),
    ],
    ids=["500", "refuse", "core_dead"],
)
def test_a_fleet_of_which_nobody_is_left_refuses_and_comes_back_whole(
    site: Site, orders: list[dict[str, Any]]
) -> None:
    load = asyncio.run(under_load(site, orders, on=EVERYBODY, out=set(EVERYBODY)))
    assert NOBODY_THERE in hows(load.got)
    late = [one for one in load.got if one.sent > load.got[-1].ended - 0.4]
    assert late and hows(late) == {WHOLE}
    assert site.router.ready()


def test_consumers_that_lie_do_not_take_their_sound_producers_with_them(site: Site) -> None:
    """Every decode of every producer fails: suspicion falls on them too, and must not leave nobody."""
    load = asyncio.run(under_load(site, legs("decode", "no_done"), on=("e2", "e3"), out={"e2", "e3"}))
    costs_the_streaks_alone(site, load.got, of=("e2", "e3"))


def test_producers_without_kv_do_not_take_their_sound_consumers_with_them(site: Site) -> None:
    load = asyncio.run(
        under_load(site, legs("prefill", "handoff", variant="missing"), on=("e0", "e1"), out={"e0", "e1"})
    )
    costs_the_streaks_alone(site, load.got, of=("e0", "e1"))
