"""HandoffStore over the handoff and log scripts: document, log, totals (the data connection)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import msgpack
import orjson

from narwhal.errors import StoreProtocolError
from narwhal.model.handoff import SCHEMA_VERSION, EntryKind, LogEntry, LogPosition, StoredHandoff
from narwhal.model.lease import AppendReply, PublishReply
from narwhal.model.request import Counters
from narwhal.model.store_call import AppendRequest, PublishRequest
from narwhal.store import replies
from narwhal.store.keys import Keys
from narwhal.store.quorum import Quorum
from narwhal.store.scripts import Argument, Reply, ScriptRunner

_COUNTERS = frozenset(Counters.__dataclass_fields__)


class ScriptHandoffStore:
    """The port `HandoffStore`, on Redis or on the in-memory server, whichever `runner` speaks to."""

    __slots__ = ("_keys", "_quorum", "_runner")

    def __init__(self, runner: ScriptRunner, cluster: str, *, quorum: Quorum | None = None) -> None:
        """`quorum`: what all stores of one router share."""
        self._runner = runner
        self._keys = Keys(cluster)
        self._quorum = quorum or Quorum()

    async def publish(self, request: PublishRequest, *, timeout_s: float) -> PublishReply:
        args: list[Argument] = [request.token, request.epoch, request.seq, str(request.upto)]
        args += [SCHEMA_VERSION, zlib.crc32(request.document), request.document]
        keys = self._keys.of("handoff_publish")

        def needs(reply: Reply) -> int:
            return self._quorum.needed_after(_published(reply))

        reply = await self._runner.run_confirmed(
            "handoff_publish", keys, args=args, needs=needs, timeout_s=timeout_s
        )
        return _published(reply)

    async def load(self, *, timeout_s: float) -> StoredHandoff | None:
        reply = await self._runner.run("handoff_load", self._keys.of("handoff_load"), timeout_s=timeout_s)
        return _stored(reply)

    async def append(self, request: AppendRequest, *, timeout_s: float) -> AppendReply:
        packed: bytes = msgpack.packb(dict(request.body))
        position = request.position
        args: list[Argument] = [request.token, position.epoch, position.n, request.kind, packed]
        keys = self._keys.of("log_append")

        def needs(reply: Reply) -> int:
            return self._quorum.needed_after(_appended(reply)) if request.confirmed else 0

        reply = await self._runner.run_confirmed(
            "log_append", keys, args=args, needs=needs, timeout_s=timeout_s
        )
        return _appended(reply)

    async def read_log(
        self, after: LogPosition, *, through: LogPosition | None = None, timeout_s: float
    ) -> Sequence[LogEntry]:
        args = (str(after), str(through) if through else "+")
        reply = await self._runner.run("log_read", self._keys.of("log_read"), args=args, timeout_s=timeout_s)
        words = list(reply)[1:]
        return [log_entry(words[at : at + 3]) for at in range(0, len(words), 3)]

    async def flush_totals(self, runs: Mapping[str, Counters], *, timeout_s: float) -> Mapping[str, Counters]:
        args = [word for run, counters in runs.items() for word in (run, orjson.dumps(counters.fields()))]
        reply = await self._runner.run(
            "totals_flush", self._keys.of("totals_flush"), args=args, timeout_s=timeout_s
        )
        return replies.decoded("totals_flush", reply, decode=totals)

    async def aclose(self) -> None:
        await self._runner.aclose()


def _published(reply: Reply) -> PublishReply:
    return replies.decoded("handoff_publish", reply, decode=replies.published)


def _appended(reply: Reply) -> AppendReply:
    return replies.decoded("log_append", reply, decode=replies.appended)


def log_entry(words: Sequence[bytes]) -> LogEntry:
    """One entry from its id, kind and body: UNREADABLE where kind or body say nothing to this version.

    Raises StoreProtocolError for an id that is none.
    """
    entry_id, kind, body = words
    try:
        position = LogPosition.parse(entry_id.decode())
    except ValueError as error:
        raise StoreProtocolError(f"log entry {entry_id!r} cannot be read: {error}") from error
    try:
        decoded = msgpack.unpackb(body)
        known = EntryKind(kind.decode())
    except (ValueError, TypeError, msgpack.UnpackException):
        return LogEntry(position, EntryKind.UNREADABLE, {})
    if not isinstance(decoded, dict):
        return LogEntry(position, EntryKind.UNREADABLE, {})
    return LogEntry(position, known, decoded)


def _stored(reply: Reply) -> StoredHandoff | None:
    if reply[0] == b"NONE":
        return None
    try:
        _, inc, now_ms, *words = reply
        fields = replies.pairs(words)
        document = fields[b"document"]
        return StoredHandoff(
            epoch=int(fields[b"epoch"]),
            seq=int(fields[b"seq"]),
            upto=LogPosition.parse(fields[b"upto"].decode()),
            at_ms=int(fields[b"at_ms"]),
            now_ms=int(now_ms),
            schema_version=int(fields[b"schema_version"]),
            document=document,
            inc=inc.decode(),
            written_inc=fields.get(b"inc", b"").decode(),
            intact=zlib.crc32(document) == int(fields[b"crc32"]),
        )
    except (ValueError, KeyError) as error:
        raise StoreProtocolError(f"the stored handoff cannot be read: {error!r}") from error


def totals(status: str, details: list[str]) -> dict[str, Counters]:
    """The counters of all runs, from a reply of run ID, JSON text, run ID, ..."""
    if status != "OK":
        raise ValueError(f"unknown status {status}")
    return {run: _counters(text) for run, text in replies.pairs(details).items()}


def _counters(text: str) -> Counters:
    """Fields of a newer version are left in Redis: flushing keeps them, this version does not count them."""
    fields = orjson.loads(text)
    return Counters(**{name: int(count) for name, count in fields.items() if name in _COUNTERS})
