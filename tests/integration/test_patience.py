"""engine/patience.py and the wheel when the loop itself stood still: what came meanwhile goes first."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from math import inf

import pytest
import uvloop

from narwhal.engine.patience import patience


async def answer_in_a_standstill(limit: Callable[[float], AbstractAsyncContextManager[None]]) -> bytes:
    """The bytes come before the time is over, but the loop cannot look: a read of another socket holds it."""
    ours, theirs = socket.socketpair()
    held, holder = socket.socketpair()
    loop = asyncio.get_running_loop()

    def stand_still() -> None:
        loop.remove_reader(held)
        theirs.send(b"in time")
        time.sleep(0.5)

    held.setblocking(False)
    loop.add_reader(held, stand_still)
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs, held, holder:
        holder.send(b"!")
        try:
            async with limit(0.2):
                return await reader.read(16)
        finally:
            writer.close()


def test_what_came_in_time_is_taken_before_the_end() -> None:
    assert uvloop.run(answer_in_a_standstill(patience)) == b"in time"
    assert asyncio.run(answer_in_a_standstill(patience)) == b"in time"


def test_nothing_in_time_is_a_timeout_also_after_a_standstill() -> None:
    async def main(still_s: float) -> None:
        asyncio.get_running_loop().call_soon(time.sleep, still_s)
        async with patience(0.05):
            await asyncio.Event().wait()

    for still_s in (0.0, 0.3):
        with pytest.raises(TimeoutError):
            uvloop.run(main(still_s))


def test_what_ends_in_time_ends_without_a_trace() -> None:
    async def main() -> None:
        async with patience(0.01):
            pass
        await asyncio.sleep(0.05)

    uvloop.run(main())


def test_a_cancellation_passes() -> None:
    async def main() -> None:
        async def wait() -> None:
            async with patience(5.0):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    uvloop.run(main())


@pytest.mark.parametrize(("spare_s", "least_s"), [(inf, 0.25), (0.1, 0.15)])
def test_it_lasts_longer_by_what_the_loop_missed(spare_s: float, least_s: float) -> None:
    async def main() -> float:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with patience(0.05, stood_still_s=lambda within_s: 0.2, spare_s=spare_s):
                await asyncio.Event().wait()
        return time.monotonic() - began

    # The loop counts in whole milliseconds.
    assert uvloop.run(main()) >= least_s - 0.001
