"""HandoffStore over the handoff and log scripts: document, log, totals (the data connection)."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import orjson

from narwhal.errors import StoreDamaged
from narwhal.model.handoff import SCHEMA_VERSION, EntryKind, LogEntry, LogPosition, StoredHandoff
from narwhal.model.lease import MAX_EPOCH, AppendReply, PublishReply
from narwhal.model.plain_text import writable
from narwhal.model.request import Counters
from narwhal.model.store_call import AppendRequest, PublishRequest
from narwhal.store import replies
from narwhal.store.keys import Keys
from narwhal.store.numbers import MOST_EXACT, Damage, stored
from narwhal.store.quorum import Quorum
from narwhal.store.scripts import Argument, Reply, ScriptRunner

log = logging.getLogger("narwhal.store")
_COUNTERS = frozenset(Counters.__dataclass_fields__)


class ScriptHandoffStore:
    """The port `HandoffStore`, on Redis or on the in-memory server, whichever `runner` speaks to."""

    __slots__ = ("_keys", "_odd", "_quorum", "_runner")

    def __init__(self, runner: ScriptRunner, cluster: str, *, quorum: Quorum | None = None) -> None:
        """`quorum`: what all stores of one router share."""
        self._runner = runner
        self._keys = Keys(cluster)
        self._quorum = quorum or Quorum()
        self._odd = 0
        """Runs whose counters could not be read at the last flush."""

    async def publish(self, request: PublishRequest, *, timeout_s: float) -> PublishReply:
        args: list[Argument] = [request.token, request.epoch, request.seq, str(request.upto)]
        args += [SCHEMA_VERSION, zlib.crc32(request.document), request.document]
        keys = self._keys.of("handoff_publish")

        def needs(reply: Reply) -> int:
            return self._quorum.needed_after(self._published(reply))

        reply = await self._runner.run_confirmed(
            "handoff_publish", keys, args=args, needs=needs, timeout_s=timeout_s
        )
        return self._published(reply)

    async def load(self, *, timeout_s: float) -> StoredHandoff | None:
        reply = await self._runner.run("handoff_load", self._keys.of("handoff_load"), timeout_s=timeout_s)
        return _stored(reply, self._keys["handoff"])

    async def append(self, request: AppendRequest, *, timeout_s: float) -> AppendReply:
        packed = _packed(request.body)
        position = request.position
        args: list[Argument] = [request.token, position.epoch, position.n, request.kind, packed]
        keys = self._keys.of("log_append")

        def needs(reply: Reply) -> int:
            return self._quorum.needed_after(self._appended(reply)) if request.confirmed else 0

        reply = await self._runner.run_confirmed(
            "log_append", keys, args=args, needs=needs, timeout_s=timeout_s
        )
        return self._appended(reply)

    async def read_log(
        self, after: LogPosition, *, through: LogPosition | None = None, timeout_s: float
    ) -> Sequence[LogEntry]:
        args = (str(after), str(through) if through else "+")
        reply = await self._runner.run("log_read", self._keys.of("log_read"), args=args, timeout_s=timeout_s)
        words = list(reply)[1:]
        key = self._keys["log"]
        return [log_entry(words[at : at + 3], key=key) for at in range(0, len(words), 3)]

    async def flush_totals(self, runs: Mapping[str, Counters], *, timeout_s: float) -> Mapping[str, Counters]:
        args = [word for run, counters in runs.items() for word in (run, orjson.dumps(counters.fields()))]
        reply = await self._runner.run(
            "totals_flush", self._keys.of("totals_flush"), args=args, timeout_s=timeout_s
        )
        read = replies.decoded("totals_flush", reply, decode=totals, keys=self._keys)
        odd = len(reply) // 2 - len(read)
        if odd and not self._odd:
            key = self._keys["totals"]
            log.warning("%s: the counters of %d runs cannot be read and are left out", key, odd)
        self._odd = odd
        return read

    def _published(self, reply: Reply) -> PublishReply:
        return replies.decoded("handoff_publish", reply, decode=replies.published, keys=self._keys)

    def _appended(self, reply: Reply) -> AppendReply:
        return replies.decoded("log_append", reply, decode=replies.appended, keys=self._keys)

    async def aclose(self) -> None:
        await self._runner.aclose()


def _packed(body: Mapping[str, Any]) -> bytes:
    """As `to_json` does: what cannot be written is written as its escape."""
    try:
        packed: bytes = msgpack.packb(dict(body))
    except (UnicodeEncodeError, OverflowError):
        packed = msgpack.packb(writable(body))
    return packed


def log_entry(words: Sequence[bytes], *, key: str = "log") -> LogEntry:
    """One entry from its id, kind and body: UNREADABLE where kind or body say nothing to this version.

    `key` is the log's. Raises StoreDamaged for an id that is none of ours.
    """
    entry_id, kind, body = words
    try:
        position = LogPosition.parse(entry_id.decode())
    except ValueError as error:
        raise StoreDamaged(f"{key}: log entry {entry_id!r:.60} cannot be read: {error}") from None
    if position.epoch > MAX_EPOCH:
        raise StoreDamaged(f"{key}: the epoch of log entry {position} is above {MAX_EPOCH}")
    try:
        decoded = msgpack.unpackb(body)
        known = EntryKind(kind.decode())
    except (ValueError, TypeError, msgpack.UnpackException):
        return LogEntry(position, EntryKind.UNREADABLE, {})
    if not isinstance(decoded, dict):
        return LogEntry(position, EntryKind.UNREADABLE, {})
    return LogEntry(position, known, decoded)


def _stored(reply: Reply, key: str) -> StoredHandoff | None:
    if reply[0] == b"NONE":
        return None
    try:
        _, inc, now_ms, *words = reply
        fields = replies.pairs(words)
        document = fields[b"document"]

        def number(name: str, most: int = MOST_EXACT) -> int:
            return stored("handoff", fields[name.encode()].decode(), field=name, most=most)

        return StoredHandoff(
            epoch=number("epoch", MAX_EPOCH),
            seq=number("seq"),
            upto=LogPosition.parse(fields[b"upto"].decode()),
            at_ms=number("at_ms"),
            now_ms=int(now_ms),
            schema_version=number("schema_version"),
            document=document,
            inc=inc.decode(),
            written_inc=fields.get(b"inc", b"").decode(),
            intact=zlib.crc32(document) == number("crc32"),
        )
    except Damage as damage:
        raise StoreDamaged(f"{key}: {damage.what}") from None
    except (ValueError, KeyError) as error:
        raise StoreDamaged(f"{key}: the stored handoff cannot be read: {error!r:.80}") from None


def totals(status: str, details: list[str]) -> dict[str, Counters]:
    """The counters of the runs that can be read, from a reply of run ID, JSON text, run ID, ..."""
    if status != "OK":
        raise ValueError(f"unknown status {status}")
    read = {run: _counters(text) for run, text in replies.pairs(details).items()}
    return {run: counters for run, counters in read.items() if counters is not None}


def _counters(text: str) -> Counters | None:
    """None: no router wrote it. Fields of a newer version are left in Redis: flushing keeps them, this
    version does not count them."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    counts = {name: count for name, count in fields.items() if name in _COUNTERS}
    sound = all(type(count) is int and 0 <= count <= MOST_EXACT for count in counts.values())
    return Counters(**counts) if sound else None
