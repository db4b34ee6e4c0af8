"""Clients: the official openai package streams chat completions and finds the owner by itself.

Without a load balancer a client tries the other router when one refuses (503) or does not answer. A
request counts as *refused while no owner* for each such try, as *cut* when its stream broke after output
had begun, and as *failed* when it got no whole answer for any other reason.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TOKENS: Final = 30
PATIENCE_S: Final = 15.0
PAUSE_S: Final = 0.05


@dataclass(slots=True)
class Tally:
    """What the clients saw. `completed`: monotonic seconds at which each whole answer had ended."""

    started: int = 0
    refused: int = 0
    completed: list[float] = field(default_factory=list)
    cut: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return len(self.failures)

    def copy(self) -> Tally:
        return Tally(self.started, self.refused, list(self.completed), list(self.cut), list(self.failures))


def _transport_errors() -> tuple[type[Exception], ...]:
    """What openai lets through when a stream breaks: errors of the HTTP client below it, of either name."""
    found = [importlib.import_module(name) for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]
    return tuple(module.HTTPError for module in found)


class Traffic:
    """`clients` workers, each one request after another, until stopped; a request begun is finished."""

    def __init__(self, urls: Sequence[str], *, clients: int = 8) -> None:
        from openai import AsyncOpenAI

        self.tally = Tally()
        self._clients = clients
        self._apis = [
            AsyncOpenAI(base_url=f"{url}/v1", api_key="demo", max_retries=0, timeout=30.0) for url in urls
        ]
        self._preferred = 0
        self._stopping = False
        self._progress = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Traffic:
        self._workers = [asyncio.create_task(self._work(n)) for n in range(self._clients)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for api in self._apis:
            await api.close()

    async def stop(self) -> None:
        """Lets every open request end, then returns. Raises what a worker raised."""
        self._stopping = True
        await asyncio.gather(*self._workers)

    async def completions(self, count: int, *, timeout_s: float = 20.0) -> None:
        """Until so many more requests were answered whole. Raises TimeoutError."""
        goal = len(self.tally.completed) + count
        async with asyncio.timeout(timeout_s):
            while len(self.tally.completed) < goal:
                self._progress.clear()
                await self._progress.wait()

    async def _work(self, number: int) -> None:
        await asyncio.sleep(0.03 * number)
        serial = 0
        while not self._stopping:
            serial += 1
            await self._request(f"Client {number}, question {serial}: how does a narwhal find air?")

    async def _request(self, question: str) -> None:
        self.tally.started += 1
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            which = self._preferred
            if await self._attempt(self._apis[which], question):
                return
            self.tally.refused += 1
            if self._preferred == which:
                self._preferred = (which + 1) % len(self._apis)
            await asyncio.sleep(PAUSE_S)
        self.tally.failures.append(f"no owner within {PATIENCE_S:.0f} s")

    async def _attempt(self, api: AsyncOpenAI, question: str) -> bool:
        """One try. False: refused or not reached, before any output. True: it ended, one way or another."""
        from openai import APIError, APIStatusError

        pieces, finish = 0, None
        breaks: tuple[type[Exception], ...] = (APIError, *_transport_errors())
        try:
            stream = await api.chat.completions.create(
                model="simulated",
                messages=[{"role": "user", "content": question}],
                max_tokens=TOKENS,
                stream=True,
            )
            async for chunk in stream:
                for choice in chunk.choices:
                    pieces += choice.delta.content is not None
                    finish = choice.finish_reason or finish
        except APIStatusError as error:
            if error.status_code == 503:
                return False
            self.tally.failures.append(f"status {error.status_code}: {error.message}")
            return True
        except breaks:
            if not pieces:
                return False
            self.tally.cut.append(time.monotonic())
            return True
        if finish == "length":
            self.tally.completed.append(time.monotonic())
            self._progress.set()
        else:
            self.tally.failures.append(f"stream ended with finish_reason {finish!r} after {pieces} events")
        return True
