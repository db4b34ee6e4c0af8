"""In-memory twins of the store: one `MemoryServer`, and the ports over it.

The same scripts, replies and decoders as on Redis (`memory_scripts.py`), with switches for what happens
to servers: restart, loss, rollback, freeze, clock steps, replicas that lag, are cut off and are promoted. A
simulation puts its network between a store and the server by giving `MemoryRunner` a `Link` of its own, and
decides who reaches which server by giving a function in place of a server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from narwhal.errors import SavedStateError, StoreUnreachable
from narwhal.model.handoff import CheckpointRecord, LogPosition
from narwhal.model.store_call import FeedBatch
from narwhal.store.faults import ReplyKind
from narwhal.store.feed import Continuity
from narwhal.store.handoff import log_entry
from narwhal.store.memory_scripts import SCRIPTS, Call, Data, Word
from narwhal.store.scripts import Argument, Needs, unconfirmed

R = TypeVar("R")

CONFIRM_LOOK_S = 0.1
"""How often a wait for replicas looks again, besides when one has caught up."""


@dataclass(frozen=True, slots=True)
class Written:
    """A reply with the place in one life of one server that replicas must reach to have its write."""

    reply: list[bytes]
    run_id: str
    offset: int


class MemoryServer:
    """One Redis server that holds one cluster's keys.

    `time_s` is its calendar (Unix seconds; `step_clock` shifts it). Everything is synchronous and
    atomic; waiting is the link's business. `data` may be read and replaced by tests. `number` tells
    servers of one world apart.

    Replication is of operations: each write reaches every attached replica (`follow`) and is applied there
    at once, or, while `lagging`, at `catch_up`. A replica confirms what it has applied.
    """

    def __init__(self, time_s: Callable[[], float], *, number: int = 0) -> None:
        self.data = Data()
        self.role = "master"
        self.down = False
        self.frozen = False
        self.lagging = False
        """As a replica: what arrives is kept, not applied, and would be lost with a promotion."""
        self.offset = 0
        """Writes applied."""
        self._time_s = time_s
        self._offset_s = 0.0
        self._number = number
        self._run = self._replid = (number << 64) + 1
        self._primary: MemoryServer | None = None
        self._followers: list[MemoryServer] = []
        self._backlog: deque[tuple[str, Call]] = deque()
        # A dict keeps the order of asking: a simulation must run the same way every time.
        self._wakers: dict[Callable[[], None], None] = {}

    @property
    def inc(self) -> str:
        return f"{self._run:040x}/{self._replid:040x}"

    def apply(self, script: str, keys: Sequence[str], *, args: Sequence[Argument]) -> list[bytes]:
        """Runs one script now. Raises StoreUnreachable for a write on a replica, as READONLY does."""
        if script in READ_ONLY:
            return [_encoded(word) for word in SCRIPTS[script](self.data, self._call(keys, args))]
        if self.role != "master":
            raise StoreUnreachable(
                f"{script}: READONLY You can't write against a read only replica.", kind=ReplyKind.READONLY
            )
        return self._write(script, self._call(keys, args))

    def _write(self, script: str, call: Call) -> list[bytes]:
        before = self.data.log_top
        reply = SCRIPTS[script](self.data, call)
        self.offset += 1
        for follower in self._followers:
            follower._receive(script, call)
        if self.data.log_top != before:
            self._wake()
        return [_encoded(word) for word in reply]

    def write(self, script: str, keys: Sequence[str], *, args: Sequence[Argument]) -> Written:
        """As `apply`, with what `confirmed` needs."""
        reply = self.apply(script, keys, args=args)
        return Written(reply, self.inc.split("/")[0], self.offset)

    def confirmed(self, written: Written) -> int:
        """Replicas that have it now, as WAIT counts them. Raises StoreUnreachable where the server is not the
        master any more or another process: its connections were lost with that."""
        if self.role != "master" or self.inc.split("/")[0] != written.run_id:
            raise StoreUnreachable("the connection was lost between a write and its confirmation")
        return sum(follower.offset >= written.offset for follower in self._followers)

    @property
    def replicas(self) -> int:
        """Replicas that are attached."""
        return len(self._followers)

    # -- replication -----------------------------------------------------------------------------

    def follow(self, primary: MemoryServer) -> None:
        """Becomes its replica, with its data as they are now. What was here is gone."""
        self.detach()
        self.role, self._replid, self._primary = "slave", primary._replid, primary
        self.data, self.offset = primary.data.copy(), primary.offset
        primary._followers.append(self)

    def detach(self) -> None:
        """The replica hears no more of its primary, and the primary counts it no more."""
        if self._primary is not None:
            self._primary._followers.remove(self)
        self._primary = None

    def promote(self) -> None:
        """A replica becomes master with what it has applied; what it has not is lost."""
        self.detach()
        self._backlog.clear()
        self.role = "master"
        self._replid += (self._number + 1) << 96
        self._wake()

    def catch_up(self) -> None:
        """Applies all that arrived."""
        while self._backlog:
            script, call = self._backlog.popleft()
            SCRIPTS[script](self.data, call)
            self.offset += 1
        if self._primary is not None:
            self._primary._wake()

    def _receive(self, script: str, call: Call) -> None:
        self._backlog.append((script, call))
        if not self.lagging:
            self.catch_up()

    def _call(self, keys: Sequence[str], args: Sequence[Argument]) -> Call:
        now_ms = int((self._time_s() + self._offset_s) * 1000)
        words = [word if isinstance(word, bytes) else str(word) for word in args]
        run_id, replid = self.inc.split("/")
        return Call(keys, words, run_id, replid, self.role, self.replicas, now_ms)  # type: ignore[arg-type]

    # -- switches --------------------------------------------------------------------------------

    def restart(self, data: Data | None = None) -> None:
        """A new process under another incarnation, with `data` (an earlier copy) or empty; no replicas."""
        for follower in tuple(self._followers):
            follower.detach()
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
        """Calls `waker` after each new log entry, restart, thaw, and when a replica caught up, until the
        returned call."""
        self._wakers[waker] = None
        return lambda: self._wakers.pop(waker, None)

    def _wake(self) -> None:
        for waker in tuple(self._wakers):
            waker()


READ_ONLY = frozenset({"lease_peek", "log_read", "handoff_load", "router_list", "router_read"})


def _encoded(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")


Where = Callable[[], MemoryServer]
"""The server that is reached now: what resolving the master again amounts to."""


def _where(server: MemoryServer | Where) -> Where:
    return (lambda: server) if isinstance(server, MemoryServer) else server


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

    __slots__ = ("_where",)

    def __init__(self, server: MemoryServer | Where) -> None:
        self._where = _where(server)

    async def call(self, operation: Callable[[], R], *, timeout_s: float) -> R:
        server = self._where()
        if server.down:
            raise StoreUnreachable("connection refused")
        if not server.frozen:
            return operation()
        return await self._call_when_thawed(server, operation, timeout_s=timeout_s)

    async def _call_when_thawed(
        self, server: MemoryServer, operation: Callable[[], R], *, timeout_s: float
    ) -> R:
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def thawed() -> None:
            if server.frozen:
                return
            forget()
            result = operation()
            if not done.done():
                done.set_result(result)

        forget = server.on_change(thawed)
        try:
            async with asyncio.timeout(timeout_s):
                return await done
        except TimeoutError:
            raise StoreUnreachable(f"no answer within {timeout_s:g} s") from None

    async def wait(self, seconds: float) -> None:
        changed = asyncio.Event()
        forget = self._where().on_change(changed.set)
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            forget()


class MemoryRunner:
    """The `ScriptRunner` twin. A function in place of `server` tells which one is reached at a call."""

    __slots__ = ("_link", "_where")

    def __init__(self, server: MemoryServer | Where, link: Link | None = None) -> None:
        self._where = _where(server)
        self._link = link or DirectLink(server)

    async def run(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> list[bytes]:
        server = self._where()
        return await self._link.call(lambda: server.apply(script, keys, args=args), timeout_s=timeout_s)

    async def run_confirmed(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument], needs: Needs, timeout_s: float
    ) -> list[bytes]:
        loop, server = asyncio.get_running_loop(), self._where()
        until = loop.time() + timeout_s
        written = await self._link.call(lambda: server.write(script, keys, args=args), timeout_s=timeout_s)
        needed, count = needs(written.reply), 0
        while needed:
            left_s = until - loop.time()
            if left_s <= 0:
                raise unconfirmed(script, count, needed=needed)
            count = await self._link.call(lambda: server.confirmed(written), timeout_s=left_s)
            if count >= needed:
                break
            await self._link.wait(min(left_s, CONFIRM_LOOK_S))
        return written.reply

    async def aclose(self) -> None:
        """Nothing is held."""


class MemoryFeed:
    """The `LogFeed` twin."""

    __slots__ = ("_continuity", "_link", "_where")

    def __init__(self, server: MemoryServer | Where, link: Link | None = None) -> None:
        self._where = _where(server)
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
        server = self._where()
        return await self._link.call(lambda: self._look(server, after), timeout_s=1.0)

    def _look(self, server: MemoryServer, after: LogPosition) -> FeedBatch:
        words = server.apply("log_read", (), args=(str(after), "+"))[1:]
        entries = [log_entry(words[at : at + 3]) for at in range(0, len(words), 3)]
        return self._continuity.batch(after, entries, inc=server.inc, top=server.data.log_top)

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
