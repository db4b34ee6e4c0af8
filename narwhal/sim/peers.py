"""Pulling KV blocks from the producer that a descriptor names.

Producers in the same process are found by host and port; others are asked over their side channel, as
NIXL does. Nothing of a pull touches the engines' serving ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import orjson

from narwhal.sim.handoff import RemoteKv, Side
from narwhal.sim.settings import SimSettings

PULL_PATH = "/sim/kv/pull"
_ANSWER_BYTES = 65536


class Pull(Enum):
    """How a pull ended. WRONG: the blocks hold another prompt by now, which nothing on the wire tells."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN_ENGINE = "unknown_engine"
    LOST = "lost"
    """A producer that was met before is gone: fails at once."""
    UNMET = "unmet"
    """A producer never met does not answer the handshake."""


class Producer(Protocol):
    """An engine of this process, as its peers see it."""

    def serve_pull(self, kv: RemoteKv, mark: int) -> Pull: ...


Find = Callable[[str, int], Producer | None]
Edge = Callable[[int], str]
"""How pulls from the producer at this port are ordered to fail: `lost`, `silent`, or empty."""


class Peers:
    """The producers that one engine knows. `done` of a pull is called once, perhaps at once, over a silent
    edge never."""

    def __init__(self, find: Find, settings: SimSettings, *, edge: Edge) -> None:
        """A handshake with a producer never met may take `unmet_peer_s`. One that was met and is only slow is
        waited for as long as it keeps blocks."""
        self._find = find
        self._edge = edge
        self._unmet_s = settings.unmet_peer_s
        self._lease_s = settings.kv_lease_s
        self._met: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def pull(self, kv: RemoteKv, mark: int, *, done: Callable[[Pull], None]) -> None:
        """Read the blocks and tell the producer that it may free them."""
        if broken := self._edge(kv.side.port):
            if broken == "lost":
                done(Pull.LOST)
            return
        producer = self._find(kv.side.host, kv.side.port)
        if producer is not None:
            done(self._note(kv.side, producer.serve_pull(kv, mark)))
            return
        task = asyncio.get_running_loop().create_task(self._pull(kv, mark, done=done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release(self, kv: RemoteKv) -> None:
        """Tell the producer that its blocks are not needed. Whatever it answers changes nothing here."""
        self.pull(kv, 0, done=lambda pull: None)

    def forget(self) -> None:
        """A restarted engine has met nobody."""
        self._met.clear()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _note(self, side: Side, pull: Pull) -> Pull:
        if pull in (Pull.RIGHT, Pull.WRONG):
            self._met.add(side.engine_id)
        return pull

    async def _pull(self, kv: RemoteKv, mark: int, *, done: Callable[[Pull], None]) -> None:
        started = asyncio.get_running_loop().time()
        met = kv.side.engine_id in self._met
        try:
            async with asyncio.timeout(self._lease_s if met else self._unmet_s):
                pull = self._note(kv.side, await _ask(kv, mark))
        except (OSError, TimeoutError, ValueError, EOFError):
            if kv.side.engine_id in self._met:
                pull = Pull.LOST
            else:
                pull = Pull.UNMET
                waited = asyncio.get_running_loop().time() - started
                await asyncio.sleep(max(0.0, self._unmet_s - waited))
        done(pull)


async def _ask(kv: RemoteKv, mark: int) -> Pull:
    """One pull over the producer's side channel. Raises OSError, EOFError or ValueError when it cannot."""
    reader, writer = await asyncio.open_connection(kv.side.host, kv.side.port)
    try:
        body = orjson.dumps(pull_document(kv, mark))
        head = f"POST {PULL_PATH} HTTP/1.1\r\nhost: producer\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read(_ANSWER_BYTES)
        _, _, payload = answer.partition(b"\r\n\r\n")
        return Pull(orjson.loads(payload)["pull"])
    except (KeyError, TypeError) as error:
        raise ValueError("the producer's answer is no pull answer") from error
    finally:
        writer.transport.abort()


def pull_document(kv: RemoteKv, mark: int) -> dict[str, Any]:
    return {
        "engine_id": kv.side.engine_id,
        "request_id": kv.request_id,
        "blocks": list(kv.blocks),
        "mark": mark,
    }


def read_pull(document: Any, side: Side) -> tuple[RemoteKv, int]:
    """The producer's reading of `pull_document`; `side` gives host and port. Raises ValueError."""
    try:
        engine_id, request_id = str(document["engine_id"]), str(document["request_id"])
        blocks = tuple(int(block) for block in document["blocks"])
        mark = int(document["mark"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a pull: {error!r}") from error
    return RemoteKv(Side(engine_id, side.host, side.port), request_id, blocks), mark
