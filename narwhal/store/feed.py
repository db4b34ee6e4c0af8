"""The log as a standby reads it: what came, and whether something between is missing.

Every entry follows its predecessor by n + 1 within an epoch; the first entry of an epoch (`acquired`,
n = 1) names in `after` the id that the log ended with. So a reader can tell a hole from a new owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from narwhal.errors import StoreDamaged
from narwhal.model.handoff import LOG_START, EntryKind, LogEntry, LogPosition
from narwhal.model.store_call import FeedBatch
from narwhal.store import replies
from narwhal.store.connection import RedisConnection
from narwhal.store.handoff import log_entry
from narwhal.store.keys import Keys
from narwhal.store.scripts import RedisRunner

LONGEST_BLOCK_S: Final = 0.5
"""Below the socket timeout: a server that has nothing to tell still answers in time."""
BATCH: Final = 500


class Continuity:
    """Judges batches of one reader in order: the incarnation it last saw is remembered."""

    __slots__ = ("_inc", "_missing")

    def __init__(self) -> None:
        self._inc = ""
        self._missing = LOG_START
        """The log's end at a read that brought nothing although something should have come. Once, that is
        an entry appended between the read and the look at the end; twice the same, it was trimmed."""

    def batch(
        self, after: LogPosition, entries: Sequence[LogEntry], *, inc: str, top: LogPosition
    ) -> FeedBatch:
        """`inc` and `top` were read *after* the entries, so that a restart between them shows."""
        changed = self._inc not in ("", inc)
        self._inc = inc
        missing = top if not entries and after < top else LOG_START
        trimmed = missing != LOG_START and missing == self._missing
        self._missing = missing
        gap = changed or trimmed or top < after or _hole(after, entries)
        return FeedBatch(entries, gap=gap, inc=inc, top=top)


def _hole(after: LogPosition, entries: Sequence[LogEntry]) -> bool:
    """From the start of time only a log that begins with an `acquired` is whole."""
    last = after
    for entry in entries:
        if entry.kind is EntryKind.UNREADABLE or not _follows(last, entry):
            return True
        last = entry.position
    return False


def _follows(last: LogPosition, entry: LogEntry) -> bool:
    if entry.position.epoch == last.epoch:
        return entry.position.n == last.n + 1
    return entry.position.n == 1 and (last == LOG_START or entry.body.get("after") == str(last))


class RedisFeed:
    """The port `LogFeed` on a connection of its own: a blocking read holds up nothing else."""

    __slots__ = ("_connection", "_continuity", "_keys", "_runner")

    def __init__(self, connection: RedisConnection, cluster: str) -> None:
        self._connection = connection
        self._runner = RedisRunner(connection)
        self._keys = Keys(cluster)
        self._continuity = Continuity()

    async def read(self, after: LogPosition, *, block_s: float) -> FeedBatch:
        entries = await self._entries(after, min(block_s, LONGEST_BLOCK_S))
        keys = self._keys.of("lease_peek")
        reply = await self._runner.run("lease_peek", keys, timeout_s=self._connection.waits.reply_s)
        view = replies.decoded("lease_peek", reply, decode=replies.view, keys=self._keys)
        return self._continuity.batch(after, entries, inc=str(view.inc), top=view.log_top)

    async def _entries(self, after: LogPosition, block_s: float) -> list[LogEntry]:
        block = ("BLOCK", max(1, int(block_s * 1000))) if block_s > 0 else ()
        words = ("XREAD", "COUNT", BATCH, *block, "STREAMS", self._keys["log"], str(after))
        timeout_s = block_s + self._connection.waits.reply_s
        try:
            reply = await self._connection.command(*words, timeout_s=timeout_s)
        except StoreDamaged as error:
            raise StoreDamaged(f"{error} ({self._keys['log']})") from error
        return _read(reply, self._keys["log"])

    async def aclose(self) -> None:
        await self._connection.aclose()


def _read(reply: Any, key: str) -> list[LogEntry]:
    """[[key, [[id, [kind, <kind>, body, <body>]], ...]]] or None when nothing came."""
    try:
        entries = reply[0][1] if reply else ()
        return [log_entry((name, fields[1], fields[3]), key=key) for name, fields in entries]
    except (IndexError, TypeError, ValueError) as error:
        raise StoreDamaged(f"{key}: XREAD gave an answer that cannot be read: {error}") from error
