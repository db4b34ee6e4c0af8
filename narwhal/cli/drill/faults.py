"""How each fault is made. Every function begins with the fault itself: the clock starts when it is called."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from narwhal.cli.drill.machines import signal_process
from narwhal.cli.drill.stage import Stage

SHORT_OUTAGE_S: Final = 2.5
"""What an owner's lease outlasts at the default times: T − M − R less the limit of one connection."""
RESTART_S: Final = 1.0
LONG_OUTAGE_S: Final = 8.0
ANSWER_S: Final = 10.0
YIELD: Final = (
    b"POST /narwhal/lifecycle/yield HTTP/1.1\r\nHost: drill\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)


async def restart(stage: Stage) -> None:
    stage.owner.send(signal.SIGTERM)


async def hand_over(stage: Stage) -> None:
    """By hand: an HTTP client takes longer to be made than the order to be carried out."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.owner.port)
    try:
        writer.write(YIELD)
        async with asyncio.timeout(ANSWER_S):
            answer = await reader.read()
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the owner refused to yield: {answer[-300:].decode(errors='replace')}")


async def kill(stage: Stage) -> None:
    signal_process(stage.owner_pid, signal.SIGKILL)


async def freeze(stage: Stage) -> None:
    signal_process(stage.owner_pid, signal.SIGSTOP)


async def lose_host(stage: Stage) -> None:
    """Router and warden end together: the warden is stopped first, so that it releases nothing."""
    stage.owner.send(signal.SIGSTOP)
    signal_process(stage.owner_pid, signal.SIGKILL)
    stage.owner.send(signal.SIGKILL)


async def partition(stage: Stage) -> None:
    stage.door_of(stage.owner).shut()


async def freeze_store(stage: Stage) -> None:
    stage.store.send(signal.SIGSTOP)
    await asyncio.sleep(SHORT_OUTAGE_S)
    stage.store.send(signal.SIGCONT)


async def restart_store(stage: Stage) -> None:
    stage.store.kill()
    await asyncio.sleep(RESTART_S)
    await stage.store.start()


async def empty_store(stage: Stage) -> None:
    stage.store.kill()
    stage.store.wipe()
    await asyncio.sleep(RESTART_S)
    await stage.store.start()


async def promote(stage: Stage) -> None:
    """The master dies; a second later a replica is master, the other follows it, the address leads there."""
    stage.store.kill()
    await asyncio.sleep(RESTART_S)
    await stage.promote_a_replica()


async def stop_store(stage: Stage, *, outage_s: float = LONG_OUTAGE_S) -> None:
    stage.store.kill()
    await asyncio.sleep(outage_s)
    await stage.store.start()
