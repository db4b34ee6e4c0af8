"""Who takes part in one thing at a time: each engine once, in the order of asking, and never for ever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from narwhal.monitor.turns import MOST_PASSED, Turns


class Hall:
    """What is under way, and who did what in which order."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.on: Counter[str] = Counter()
        self.began: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, *engines: str, times: int = 2) -> asyncio.Task[None]:
        async def work() -> None:
            async with self.turns.of(engines):
                self.began.append("".join(engines))
                self.on.update(set(engines))
                assert max(self.on.values()) == 1, self.on
                try:
                    for _ in range(times):
                        await asyncio.sleep(0)
                finally:
                    self.on.subtract(set(engines))

        task = self.tasks["".join(engines)] = asyncio.create_task(work())
        return task

    async def end(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self.tasks.values()), 5.0)
        assert not self.turns


async def test_what_shares_no_engine_goes_on_at_once_and_what_does_takes_turns() -> None:
    hall = Hall()
    for engines in ("ab", "bc", "cd", "ef"):
        hall.ask(*engines)
    await asyncio.sleep(0)
    assert hall.began == ["ab", "cd", "ef"]
    await hall.end()
    assert hall.began == ["ab", "cd", "ef", "bc"]


async def test_an_engine_that_hangs_holds_up_its_partners_and_not_theirs() -> None:
    hall = Hall()
    hung = hall.ask("a", "b", times=100_000)
    hall.ask("a", "c")
    others = [hall.ask("c", partner) for partner in "def"]
    await asyncio.wait(others)
    assert hall.began == ["ab", "cd", "ce", "cf"]
    hung.cancel()
    await asyncio.wait({hung})
    hall.tasks.pop("ab")
    await hall.end()
    assert hall.began[-1] == "ac"


async def test_nobody_is_passed_for_ever() -> None:
    hall = Hall()
    waiting = [0, 0]

    async def keep_busy(number: int) -> None:
        """Two of these at each end, so that one of them is always taken."""
        while not done.is_set():
            async with hall.turns.of([("a", "b")[number]]):
                waiting[number] += 1
                for _ in range(1 + number):
                    await asyncio.sleep(0)

    done = asyncio.Event()
    busy = [asyncio.create_task(keep_busy(number)) for number in (0, 0, 1, 1)]
    await asyncio.sleep(0)
    hall.ask("a", "b")
    await asyncio.wait_for(hall.tasks["ab"], 5.0)
    done.set()
    await asyncio.gather(*busy)
    assert sum(waiting) <= 2 * MOST_PASSED
    assert not hall.turns


async def test_rings_and_the_same_pair_the_other_way_round_end() -> None:
    hall = Hall()
    for engines in ("ab", "bc", "ca", "ba", "cb", "ac", "aa"):
        hall.ask(*engines)
    await hall.end()
    assert len(hall.began) == 7


async def test_one_that_gives_up_waiting_holds_up_nobody() -> None:
    hall = Hall()
    first = hall.ask("a", "b", times=1000)
    hall.ask("b", "c")
    hall.ask("c", "d")
    await asyncio.sleep(0)
    hall.tasks.pop("bc").cancel()
    await hall.tasks["cd"]
    first.cancel()
    hall.tasks.pop("ab")
    hall.ask("a", "b")
    await hall.end()
    assert hall.began == ["ab", "cd", "ab"]


async def test_one_that_is_cancelled_when_its_turn_has_just_come_passes_it_on() -> None:
    hall = Hall()
    async with hall.turns.of("ab"):
        second, third = hall.ask("b", "c"), hall.ask("c", "d")
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second, third})
    assert (hall.began, second.cancelled()) == (["cd"], True)
    assert not hall.turns


async def test_any_order_of_asking_and_leaving_ends() -> None:
    for seed in range(30):
        dice, hall = random.Random(seed), Hall()
        for number in range(60):
            task = hall.ask(*dice.sample("abcdefgh", 2), times=dice.randrange(4))
            hall.tasks[str(number)] = task
            if dice.random() < 0.3:
                await asyncio.sleep(0)
        await hall.end()
