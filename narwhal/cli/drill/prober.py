"""Independent eyes on routers: who says it is ready, asked every 20 ms over a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from typing import Final
from urllib.parse import urlsplit

from narwhal.cli.witness import Yes

EVERY_S: Final = 0.02
HURRY_S: Final = 0.004
"""While a quick takeover is timed."""
ANSWER_S: Final = 2.0


class Prober:
    """One router's prober. `yeses` grows while it runs; `every_s` may be changed at any time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.every_s = EVERY_S
        self.yeses: list[Yes] = []
        self.asked = 0
        self._open = True
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._open = False
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def first_yes(self, *, after: float, epoch: int) -> Yes | None:
        """The first yes of a higher epoch to a question asked after that moment."""
        fresh = itertools.takewhile(lambda yes: yes.asked >= after, reversed(self.yeses))
        return min((yes for yes in fresh if yes.epoch > epoch), key=lambda yes: yes.told, default=None)

    async def _run(self) -> None:
        while self._open:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
                await self._converse()
            await asyncio.sleep(self.every_s)

    async def _converse(self) -> None:
        """Questions over one connection, until it ends."""
        place = urlsplit(self.url)
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            while self._open:
                asked = time.monotonic()
                async with asyncio.timeout(ANSWER_S):
                    writer.write(b"GET /ready HTTP/1.1\r\nhost: drill\r\n\r\n")
                    status, body = await _answer(reader)
                self.asked += 1
                if status == 200:
                    self.yeses.append(Yes(self.url, int(json.loads(body)["epoch"]), asked, time.monotonic()))
                await asyncio.sleep(self.every_s)
        finally:
            writer.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)
