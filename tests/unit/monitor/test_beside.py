"""Work beside the pass that ends with a bug: told once, and nothing is kept of it."""

from __future__ import annotations

import asyncio

import pytest

from narwhal.monitor.beside import Beside


async def broken() -> None:
    raise ZeroDivisionError("a bug")


def test_a_bug_that_shows_on_every_engine_is_told_once_with_their_number() -> None:
    async def scene() -> None:
        beside: Beside[int] = Beside()
        for _ in range(3):
            for engine in range(20):
                beside.begin(engine, broken)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not beside
            with pytest.raises(ZeroDivisionError) as told:
                beside.take_in()
            assert told.value.__notes__ == ["and 19 more since the last pass"]
            beside.take_in()
        await beside.aclose()

    asyncio.run(scene())
