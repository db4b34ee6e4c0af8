"""Whole histories of a cluster, told step by step: switches, deaths, losses, returns."""

from __future__ import annotations

import asyncio

from tests.simulation.stage import Scene, Stage, play


def test_a_clean_switch_takes_milliseconds_and_loses_no_count() -> None:
    gaps: list[float] = []

    async def switch(stage: Stage) -> None:
        for _ in range(8):
            owner = await stage.owner()
            await asyncio.sleep(2.0)
            began = stage.loop.time()
            owner.ask_yield()
            await stage.until(lambda owner=owner: not owner.admits())
            await stage.owner()
            gaps.append(stage.loop.time() - began)
        stage.trace(f"counted {[router.counted for router in stage.lives]}")

    outcome = play(Scene(switch, duration_s=60.0))
    assert outcome.error == ""
    assert sorted(gaps)[4] < 0.05
    assert max(gaps) < 0.5


def test_a_killed_owner_is_followed_within_ttl_and_its_counts_survive_but_the_last_flush() -> None:
    lost: list[int] = []

    async def kill(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(5.0)
        owner.kill()
        died = stage.loop.time()
        successor = await stage.owner()
        assert 3.0 <= stage.loop.time() - died <= 5.5
        assert successor.parts.gate.epoch > owner.parts.gate.epoch
        recent = sum(died - at <= 0.1 for at in owner.counted_at)
        missing = owner.counted - stage.checkers.stored()[owner.run]
        lost.append(missing)
        assert 0 <= missing <= recent

    assert play(kill).error == ""
    assert lost


def test_a_stalled_main_loop_is_not_renewed_for() -> None:
    async def stall(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(2.0)
        owner.pause(9.0, main_only=True)
        began = stage.loop.time()
        await stage.until(lambda: not owner.admits())
        successor = await stage.owner()
        assert successor is not owner
        assert stage.loop.time() - began < 9.0

    assert play(stall).error == ""


def test_an_emptied_restarted_store_within_the_deadline_changes_no_owner() -> None:
    async def restart(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(3.0)
        epoch = owner.parts.gate.epoch
        stage.net.store.down_until = stage.loop.time() + 2.0
        stage.net.store.server.restart(None)
        stage.checkers.store_changed_by_fault()
        await asyncio.sleep(8.0)
        assert owner.admits() and owner.parts.gate.epoch == epoch
        assert stage.net.store.server.data.handoff["epoch"] == str(epoch)

    assert play(restart).error == ""


def test_epochs_grow_when_everyone_died_and_the_store_is_empty_and_its_clock_is_wrong() -> None:
    async def wipe(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(4.0)
        epoch = owner.parts.gate.epoch
        for router in list(stage.latest.values()):
            router.kill()
        stage.net.store.server.restart(None)
        stage.net.store.server.step_clock(-1_000_000.0)
        stage.checkers.store_changed_by_fault()
        for name in stage.hosts:
            stage.spawn(name)
        assert (await stage.owner()).parts.gate.epoch > epoch

    assert play(wipe).error == ""


def test_counters_survive_the_death_of_the_owner_together_with_the_store() -> None:
    async def wipe(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(6.0)
        known = owner.counted
        await asyncio.sleep(2.0)
        owner.kill()
        stage.net.store.server.restart(None)
        stage.checkers.store_changed_by_fault()
        successor = await stage.owner()
        await asyncio.sleep(1.0)
        assert known <= successor.totals.vector()[owner.run].served <= owner.counted

    assert play(wipe).error == ""


def test_a_fenced_router_comes_back_by_itself_under_another_token() -> None:
    async def cut(stage: Stage) -> None:
        owner = await stage.owner()
        await asyncio.sleep(2.0)
        holder = owner.parts.gate.holder
        stage.net.wire(owner.host.name).cut_until = stage.loop.time() + 8.0
        await asyncio.sleep(12.0)
        assert not owner.admits()
        for router in stage.latest.values():
            if router is not owner:
                router.kill()
        await asyncio.sleep(8.0)
        assert owner.admits()
        assert owner.parts.gate.holder != holder

    assert play(cut).error == ""


def test_the_preferred_successor_takes_a_yielded_lease() -> None:
    async def switch(stage: Stage) -> None:
        for _ in range(4):
            owner = await stage.owner()
            await asyncio.sleep(4.0)
            wanted = max(name for name in stage.hosts if name != owner.host.name)
            owner.ask_yield(wanted)
            await asyncio.sleep(0.7)
            assert (await stage.owner()).host.name == wanted

    assert play(switch).error == ""
