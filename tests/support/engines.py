"""Simulated engines for tests: on the test's own loop, or as one process of their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from narwhal.sim.rack import Rack, Stand
from narwhal.sim.settings import SimSettings
from tests.support.processes import LIVENESS_S, Process, eventually, python

QUICK = SimSettings(prefill_s=0.0, interval_s=0.0)
"""Engines that take no time on purpose."""


@asynccontextmanager
async def engines_here(count: int = 2, settings: SimSettings = QUICK) -> AsyncIterator[Sequence[Stand]]:
    """Engines e0, e1... on the running loop; `stand.engine` is the engine itself."""
    rack = Rack()
    try:
        for index in range(count):
            rack.add(replace(settings, name=f"e{index}"))
        yield rack.stands
    finally:
        rack.close()
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """One engine of another process. Its orders go over the side channel, which no fault closes."""

    name: str
    url: str
    side_url: str

    def stats(self, *, requests: bool = False) -> dict[str, Any]:
        """Its `/sim/stats`; with `requests` the recorded requests too."""
        return call("GET", f"{self.side_url}/sim/stats{'' if requests else '?requests=0'}")

    def order(self, fault: str, **fields: Any) -> None:
        """Put a fault in force."""
        call("POST", f"{self.side_url}/sim/faults", {"fault": fault, **fields})

    def clear(self) -> None:
        call("DELETE", f"{self.side_url}/sim/faults")

    def reset(self) -> None:
        """Clear faults and counters."""
        call("POST", f"{self.side_url}/sim/reset")

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The process that serves `engines`."""

    process: Process
    engines: Sequence[RemoteEngine]

    def idle(self) -> bool:
        """Whether no engine has a request running or waiting."""
        return all(stats["running"] == stats["waiting"] == 0 for stats in self.all_stats())

    def all_stats(self) -> list[dict[str, Any]]:
        return [engine.stats() for engine in self.engines]

    def becomes_idle(self, *, within_s: float = LIVENESS_S) -> None:
        eventually(self.idle, within_s=within_s, what="engines idle")


@contextmanager
def engine_process(count: int = 2, *arguments: str) -> Iterator[EngineProcess]:
    """`narwhal simulate` with further arguments, on free ports, ended at the end."""
    process = Process(python("narwhal.cli.simulate", "--engines", str(count), *arguments))
    try:
        process.wait_for(lambda lines: len(lines) >= count)
        yield EngineProcess(process, [RemoteEngine(*line.split()) for line in process.lines[:count]])
    finally:
        process.stop()


def call(method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
    """One JSON exchange without proxies. Raises HTTPError for an error status, other OSErrors where there is
    no whole answer: whoever answers may be killed in the midst of it."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=LIVENESS_S) as answer:
            return json.loads(answer.read() or b"null")
    except http.client.HTTPException as error:
        raise ConnectionError(f"{method} {url}: {error!r}") from error
