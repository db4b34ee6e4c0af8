"""The lease record as it changes, read by a connection that no router shares."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from redis import exceptions as driver
from redis.asyncio import Redis

EVERY_S: Final = 0.01
CALL_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Sight:
    """The record at one moment (monotonic seconds after the answer)."""

    at: float
    state: str
    token: str = field(repr=False)
    seq: str
    epoch: int
    owner: str
    pid: int


class LeaseWatch:
    """`sights` holds changes only, oldest first. `client` makes a client of the server that counts now."""

    def __init__(self, key: str, client: Callable[[], Redis]) -> None:
        self._key = key
        self._client = client
        self.sights: list[Sight] = []
        self._open = True
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._open = False
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def last(self) -> Sight | None:
        return self.sights[-1] if self.sights else None

    def left(self, token: str, *, after: float) -> float | None:
        """When the record was first seen to be no more held by that token; None: it still is."""
        return next((one.at for one in self.sights if one.at >= after and not _held_by(one, token)), None)

    def last_change_of(self, token: str) -> float | None:
        """When the last renewal of that token was seen."""
        return next((one.at for one in reversed(self.sights) if _held_by(one, token)), None)

    async def _run(self) -> None:
        while self._open:
            client = self._client()
            try:
                await self._follow(client)
            except (driver.RedisError, OSError, TimeoutError):
                await asyncio.sleep(5 * EVERY_S)
            finally:
                await client.aclose()

    async def _follow(self, client: Redis) -> None:
        while self._open:
            async with asyncio.timeout(CALL_S):
                words = await client.hmget(self._key, ["state", "token", "seq", "epoch", "owner", "pid"])
            state, token, seq, epoch, owner, pid = [str(word or "") for word in words]
            if state:
                sight = Sight(time.monotonic(), state, token, seq, int(epoch or 0), owner, int(pid or 0))
                if self.last is None or _version(self.last) != _version(sight):
                    self.sights.append(sight)
            await asyncio.sleep(EVERY_S)


def _held_by(sight: Sight, token: str) -> bool:
    return sight.state == "held" and sight.token == token


def _version(sight: Sight) -> tuple[str, str, str]:
    return sight.state, sight.token, sight.seq
