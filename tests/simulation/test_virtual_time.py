"""The virtual loop itself: time jumps, strands pause in order, the dead stay silent."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import Deadlock, Strand, StrandClock, VirtualLoop


def test_hours_pass_at_once_and_exactly() -> None:
    loop = VirtualLoop()

    async def script() -> float:
        await asyncio.sleep(3600.0)
        async with asyncio.timeout(7200.0):
            await asyncio.sleep(3600.0)
        return loop.time()

    assert loop.run(script()) == 7200.0
    loop.close()


def test_waiting_for_nothing_is_told() -> None:
    loop = VirtualLoop()

    async def script() -> None:
        await asyncio.Event().wait()

    task = loop.create_task(script())
    with pytest.raises(Deadlock):
        loop.run_until_complete(task)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_a_paused_strand_goes_on_in_order_and_a_dead_one_never() -> None:
    loop = VirtualLoop()
    strand, other = Strand("a"), Strand("b")
    lines: list[tuple[float, str]] = []

    async def tick(name: str) -> None:
        for number in range(4):
            lines.append((loop.time(), f"{name}{number}"))
            await asyncio.sleep(1.0)

    async def script() -> None:
        strand.spawn(tick("a"))
        other.spawn(tick("b"))
        await asyncio.sleep(0.5)
        loop.pause(strand, 2.75)
        await asyncio.sleep(1.0)
        other.dead = True
        await asyncio.sleep(10.0)

    loop.run(script())
    loop.bury([strand, other])
    loop.close()
    assert [line for line in lines if line[1].startswith("a")] == [
        (0.0, "a0"),
        (2.75, "a1"),
        (3.75, "a2"),
        (4.75, "a3"),
    ]
    assert [line for line in lines if line[1].startswith("b")] == [(0.0, "b0"), (1.0, "b1")]


def test_a_strands_clock_runs_at_its_own_rate() -> None:
    loop = VirtualLoop()
    clock = StrandClock(loop, rate=1.02, offset_s=100.0)

    async def script() -> None:
        await clock.sleep(1.02)

    loop.run(script())
    loop.close()
    assert loop.time() == pytest.approx(1.0)
    assert clock.now() == pytest.approx(101.02)
