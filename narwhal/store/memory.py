"""In-memory twins of the store: one `MemoryServer`, and the ports over it.

The same scripts, replies and decoders as on Redis (`memory_scripts.py`), with switches for what happens
to servers: restart, loss, rollback, freeze, clock steps. A simulation puts its network between a store
and the server by giving `MemoryRunner` a `Link` of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from narwhal.errors import SavedStateError, StoreUnreachable
from narwhal.model.handoff import CheckpointRecord, LogPosition
from narwhal.ports import FeedBatch
from narwhal.store.feed import Continuity
from narwhal.store.handoff import log_entry
from narwhal.store.memory_scripts import SCRIPTS, Call, Data, Word
from narwhal.store.scripts import Argument

R = TypeVar("R")


class MemoryServer:
    """One Redis server that holds one cluster's keys.

    `time_s` is its calendar (Unix seconds; `step_clock` shifts it). Everything is synchronous and
    atomic; waiting is the link's business. `data` may be read and replaced by tests.
    """

    def __init__(self, time_s: Callable[[], float]) -> None:
        self.data = Data()
        self.role = "master"
        self.replicas = 0
        self.down = False
        self.frozen = False
        self._time_s = time_s
        self._offset_s = 0.0
        self._run = self._replid = 1
        # A dict keeps the order of asking: a simulation must run the same way every time.
        self._wakers: dict[Callable[[], None], None] = {}

    @property
    def inc(self) -> str:
        return f"{self._run:040x}/{self._replid:040x}"

    def apply(self, script: str, keys: Sequence[str], *, args: Sequence[Argument]) -> list[bytes]:
        """Runs one script now. Raises StoreUnreachable for a write on a replica, as READONLY does."""
        if self.role != "master" and script not in READ_ONLY:
            raise StoreUnreachable(f"{script}: READONLY You can't write against a read only replica.")
        before = self.data.log_top
        reply = SCRIPTS[script](self.data, self._call(keys, args))
        if self.data.log_top != before:
            self._wake()
        return [_encoded(word) for word in reply]

    def _call(self, keys: Sequence[str], args: Sequence[Argument]) -> Call:
        now_ms = int((self._time_s() + self._offset_s) * 1000)
        words = [word if isinstance(word, bytes) else str(word) for word in args]
        run_id, replid = self.inc.split("/")
        return Call(keys, words, run_id, replid, self.role, self.replicas, now_ms)  # type: ignore[arg-type]

    # -- switches --------------------------------------------------------------------------------

    def restart(self, data: Data | None = None) -> None:
        """A new process under another incarnation, with `data` (an earlier copy) or empty."""
        self._run += 1
        self._replid += 1
        self.data = Data() if data is None else data.copy()
        self.frozen = False
        self._wake()

    def change_replid(self) -> None:
        """A first replica attached, or a promotion: another incarnation, nothing lost."""
        self._replid += 1

    def flush(self) -> None:
        """FLUSHALL: everything gone under the same incarnation."""
        self.data = Data()

    def thaw(self) -> None:
        self.frozen = False
        self._wake()

    def step_clock(self, seconds: float) -> None:
        self._offset_s += seconds

    # -- waiting ---------------------------------------------------------------------------------

    def on_change(self, waker: Callable[[], None]) -> Callable[[], None]:
        """Calls `waker` after each new log entry, restart and thaw, until the returned call."""
        self._wakers[waker] = None
        return lambda: self._wakers.pop(waker, None)

    def _wake(self) -> None:
        for waker in tuple(self._wakers):
            waker()


READ_ONLY = frozenset({"lease_peek", "log_read", "handoff_load", "router_list", "router_read"})


def _encoded(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")


class Link(Protocol):
    """What lies between a store and the server. A simulation's drops, delays and partitions."""

    async def call(self, operation: Callable[[], R], *, timeout_s: float) -> R:
        """Runs `operation` at the server, once or never, now or (after a timeout) later.

        Raises StoreUnreachable when no answer came within `timeout_s`.
        """

    async def wait(self, seconds: float) -> None:
        """Returns after `seconds`, or earlier when the log may have grown."""


class DirectLink:
    """No network: an operation runs at once. A frozen server runs it when it thaws, as Redis does."""

    __slots__ = ("_server",)

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def call(self, operation: Callable[[], R], *, timeout_s: float) -> R:
        if self._server.down:
            raise StoreUnreachable("connection refused")
        if not self._server.frozen:
            return operation()
        return await self._call_when_thawed(operation, timeout_s)

    async def _call_when_thawed(self, operation: Callable[[], R], timeout_s: float) -> R:
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def thawed() -> None:
            if self._server.frozen:
                return
            forget()
            result = operation()
            if not done.done():
                done.set_result(result)

        forget = self._server.on_change(thawed)
        try:
            async with asyncio.timeout(timeout_s):
                return await done
        except TimeoutError:
            raise StoreUnreachable(f"no answer within {timeout_s:g} s") from None

    async def wait(self, seconds: float) -> None:
        changed = asyncio.Event()
        forget = self._server.on_change(changed.set)
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            forget()


class MemoryRunner:
    """The `ScriptRunner` twin. One server confirms its own writes, so `run_confirmed` is `run`."""

    __slots__ = ("_link", "_server")

    def __init__(self, server: MemoryServer, link: Link | None = None) -> None:
        self._server = server
        self._link = link or DirectLink(server)

    async def run(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> list[bytes]:
        return await self._link.call(lambda: self._server.apply(script, keys, args=args), timeout_s=timeout_s)

    run_confirmed = run

    async def aclose(self) -> None:
        """Nothing is held."""


class MemoryFeed:
    """The `LogFeed` twin."""

    __slots__ = ("_continuity", "_link", "_server")

    def __init__(self, server: MemoryServer, link: Link | None = None) -> None:
        self._server = server
        self._link = link or DirectLink(server)
        self._continuity = Continuity()

    async def read(self, after: LogPosition, *, block_s: float) -> FeedBatch:
        batch = await self._read(after)
        if batch.entries or block_s <= 0:
            return batch
        await self._link.wait(block_s)
        later = await self._read(after)
        return replace(later, gap=batch.gap or later.gap)

    async def _read(self, after: LogPosition) -> FeedBatch:
        return await self._link.call(lambda: self._look(after), timeout_s=1.0)

    def _look(self, after: LogPosition) -> FeedBatch:
        words = self._server.apply("log_read", (), args=(str(after), "+"))[1:]
        entries = [log_entry(words[at : at + 3]) for at in range(0, len(words), 3)]
        top = self._server.data.log_top
        return self._continuity.batch(after, entries, inc=self._server.inc, top=top)

    async def aclose(self) -> None:
        """Nothing is held."""


class MemoryCheckpoint:
    """The `Checkpoint` twin. `fails_with` and `broken` stand for a full disk and a torn file."""

    def __init__(self) -> None:
        self.record: CheckpointRecord | None = None
        self.fails_with: OSError | None = None
        self.broken: SavedStateError | None = None

    def read(self) -> CheckpointRecord | None:
        if self.broken:
            raise self.broken
        return self.record

    def write(self, record: CheckpointRecord) -> None:
        if self.fails_with:
            raise self.fails_with
        self.record = record
        self.broken = None
