"""A cluster's records read straight from the store: for commands that must work with no router up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from narwhal.errors import StoreProtocolError
from narwhal.model.handoff import LOG_START, EntryKind, LogEntry
from narwhal.model.lease import LeaseState, LeaseVersion, LeaseView, holder_of
from narwhal.model.request import Counters
from narwhal.model.settings import StoreAddress
from narwhal.model.store_call import RouterEntry
from narwhal.store.advice import parse_info, warnings
from narwhal.store.connection import Login
from narwhal.store.handoff import ScriptHandoffStore, totals
from narwhal.store.keys import Keys
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.registry import ScriptRegistry
from narwhal.store.replies import decoded, pairs
from narwhal.store.scripts import RedisRunner
from narwhal.store.sentinel import connection_to

CALL_S = 2.0
SCAN_COUNT = 1000
SCAN_CALLS = 1000
"""A look for clusters ends after about a million keys: a store may be full of other things."""
INFO_SECTIONS = ("server", "memory", "persistence", "replication")
OWNERSHIP = (EntryKind.ACQUIRED, EntryKind.RELEASED)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`mode`: standalone or sentinel. `info`: name -> value of INFO. `latency_ms`: of one PING."""

    mode: str
    info: Mapping[str, str]
    warnings: tuple[str, ...]
    latency_ms: float


@dataclass(frozen=True, slots=True)
class ClusterRecords:
    """Everything that the store tells about one cluster at one time. Ages are by the store's own clock
    (`lease.now_ms`). `claims`: router ID -> its claim as JSON text. `changes`: what the log still holds."""

    cluster: str
    lease: LeaseView
    routers: tuple[RouterEntry, ...]
    claims: Mapping[str, str]
    totals: Mapping[str, Counters]
    changes: tuple[LogEntry, ...]
    server: ServerFacts

    @property
    def holder(self) -> str:
        """The public form of owner and token, "" while nobody holds the lease."""
        return public_holder(self.lease)

    @property
    def known(self) -> bool:
        """Whether anything of this cluster is stored at all."""
        return bool(self.lease.state or self.lease.epoch_key or self.routers or self.totals)


def public_holder(lease: LeaseView) -> str:
    if lease.state is not LeaseState.HELD or lease.version is None:
        return ""
    return holder_of(lease.owner, lease.version.token)


class RecordReader:
    """One connection; calls one after another. Everything raises StoreError."""

    def __init__(self, address: StoreAddress, password: str, *, scan_calls: int = SCAN_CALLS) -> None:
        self._connection = connection_to(address, Login("narwhal-cluster-command", password))
        self._runner = RedisRunner(self._connection)
        self._scan_calls = scan_calls
        self._mode = "sentinel" if address.service else "standalone"

    async def read(self, cluster: str) -> ClusterRecords:
        lease = await self.lease(cluster)
        return ClusterRecords(
            cluster=cluster,
            lease=lease,
            routers=tuple(await ScriptRegistry(self._runner, cluster).routers(timeout_s=CALL_S)),
            claims=await self._hash(Keys(cluster)["claims"]),
            totals=await self._totals(cluster),
            changes=await self._changes(cluster),
            server=await self._server(),
        )

    async def lease(self, cluster: str) -> LeaseView:
        return await ScriptLeaseStore(self._runner, cluster).peek(timeout_s=CALL_S)

    async def depose(self, cluster: str, version: LeaseVersion, *, reason: str) -> bool:
        """Ends the tenure of exactly that version; False: another is stored by now. Others still watch T."""
        store = ScriptLeaseStore(self._runner, cluster)
        return await store.depose(version, reason=reason, timeout_s=CALL_S)

    async def clusters(self) -> tuple[str, ...]:
        """Names of all clusters in the store, sorted. Raises StoreProtocolError where SCAN is not allowed, or
        where it came to no end."""
        found: set[str] = set()
        cursor = b"0"
        for _ in range(self._scan_calls):
            words = ("SCAN", cursor, "MATCH", "narwhal:{*}:lease", "COUNT", SCAN_COUNT)
            cursor, names = await self._connection.command(*words, timeout_s=CALL_S)
            found |= {name.decode()[len("narwhal:{") : -len("}:lease")] for name in names}
            if cursor == b"0":
                return tuple(sorted(found))
        some = ", ".join(sorted(found)) or "none"
        raise StoreProtocolError(
            f"the store holds too many keys to look at all of them (found so far: {some})"
        )

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def _hash(self, key: str) -> dict[str, str]:
        flat = await self._connection.command("HGETALL", key, timeout_s=CALL_S)
        return pairs([word.decode("utf-8", "replace") for word in flat])

    async def _totals(self, cluster: str) -> Mapping[str, Counters]:
        """Fields of a newer version are left out, as the routers do."""
        flat = await self._connection.command("HGETALL", Keys(cluster)["totals"], timeout_s=CALL_S)
        return decoded("HGETALL totals", [b"OK", *flat], decode=totals)

    async def _changes(self, cluster: str) -> tuple[LogEntry, ...]:
        store, found, last = ScriptHandoffStore(self._runner, cluster), list[LogEntry](), LOG_START
        while entries := await store.read_log(last, timeout_s=CALL_S):
            last = entries[-1].position
            found += [entry for entry in entries if entry.kind in OWNERSHIP]
        return tuple(found)

    async def _server(self) -> ServerFacts:
        began = time.perf_counter()
        await self._connection.command("PING", timeout_s=CALL_S)
        latency_ms = (time.perf_counter() - began) * 1000
        info: dict[str, str] = {}
        for section in INFO_SECTIONS:
            info |= parse_info(await self._connection.command("INFO", section, timeout_s=CALL_S))
        told = (*warnings(info), *self._connection.risks())
        return ServerFacts(self._mode, info, told, round(latency_ms, 3))


def sum_of(totals: Mapping[str, Counters]) -> Mapping[str, int]:
    """Each counter summed over all runs."""
    names = Counters.__dataclass_fields__
    return {name: sum(getattr(one, name) for one in totals.values()) for name in names}
