"""The store of a contract test: the in-memory twin and every real server, under one interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from narwhal.ports import HandoffStore, LeaseStore, LogFeed, Registry
from narwhal.store.connection import RedisConnection
from narwhal.store.feed import RedisFeed
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryFeed, MemoryRunner, MemoryServer
from narwhal.store.quorum import Quorum
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner
from tests.support.redis import KINDS, LOGIN, PATIENT, RedisServer, confirms, denied, running

CLUSTER = "contract"


@dataclass
class Stores:
    """The ports of one router."""

    lease: LeaseStore
    handoff: HandoffStore
    registry: Registry
    feed: LogFeed

    async def aclose(self) -> None:
        for port in (self.lease, self.handoff, self.registry, self.feed):
            await port.aclose()


Scenario = Callable[[Stores], Awaitable[Any]]


class Replica(Protocol):
    """One replica of the server and what can happen to it."""

    def freeze(self) -> None:
        """Still attached, confirms nothing."""

    def thaw(self) -> None: ...

    def leave(self) -> None:
        """The master has it no more."""


class Backend(Protocol):
    """One server and what can happen to it."""

    def open(self, quorum: Quorum | None = None) -> Stores: ...

    def replica(self) -> AbstractContextManager[Replica]:
        """A replica in step, for the length of a `with` block."""

    def flush(self) -> None: ...

    def restart(self) -> None:
        """Another incarnation, empty."""

    def save(self) -> None:
        """Remembers what is stored now."""

    def roll_back(self) -> None:
        """Another incarnation with what was remembered: a restart from an old file, a lossy failover."""


class MemoryBackend:
    def __init__(self) -> None:
        self.server = MemoryServer(time.time)
        self._saved = self.server.data.copy()

    def open(self, quorum: Quorum | None = None) -> Stores:
        runner, quorum = MemoryRunner(self.server), quorum or Quorum()
        handoff, registry = (
            ScriptHandoffStore(runner, CLUSTER, quorum=quorum),
            ScriptRegistry(runner, CLUSTER),
        )
        return Stores(
            ScriptLeaseStore(runner, CLUSTER, quorum=quorum), handoff, registry, MemoryFeed(self.server)
        )

    @contextmanager
    def replica(self) -> Iterator[Replica]:
        replica = MemoryReplica(MemoryServer(time.time, number=1))
        replica.server.follow(self.server)
        try:
            yield replica
        finally:
            replica.leave()

    def flush(self) -> None:
        self.server.flush()

    def restart(self) -> None:
        self.server.restart()

    def save(self) -> None:
        self._saved = self.server.data.copy()

    def roll_back(self) -> None:
        self.server.restart(self._saved)


class MemoryReplica:
    def __init__(self, server: MemoryServer) -> None:
        self.server = server

    def freeze(self) -> None:
        self.server.lagging = True

    def thaw(self) -> None:
        self.server.lagging = False
        self.server.catch_up()

    def leave(self) -> None:
        self.server.detach()


class RedisBackend:
    """A real server, reached as the user that `configs/redis.acl` makes."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._saved: dict[str, tuple[int, bytes]] = {}

    def open(self, quorum: Quorum | None = None) -> Stores:
        def connection() -> RedisConnection:
            return RedisConnection(self.server.address, LOGIN, waits=PATIENT)

        data, quorum = RedisRunner(connection()), quorum or Quorum()
        handoff, registry = ScriptHandoffStore(data, CLUSTER, quorum=quorum), ScriptRegistry(data, CLUSTER)
        lease = ScriptLeaseStore(RedisRunner(connection()), CLUSTER, quorum=quorum)
        return Stores(lease, handoff, registry, RedisFeed(connection(), CLUSTER))

    @contextmanager
    def replica(self) -> Iterator[Replica]:
        with running(self.server.kind, self.server.directory / "replica") as server:
            replica = RedisReplica(server, self.server)
            replica.join()
            try:
                yield replica
            finally:
                replica.leave()

    def flush(self) -> None:
        with self.server.client() as client:
            client.flushall()
            client.config_set("maxmemory", "0")

    def restart(self) -> None:
        self.server.restart()

    def save(self) -> None:
        with self.server.client() as client:
            client.connection_pool.connection_kwargs["decode_responses"] = False
            keys = list(client.scan_iter())
            self._saved = {key: (max(client.pttl(key), 0), client.dump(key)) for key in keys}

    def roll_back(self) -> None:
        self.server.restart()
        with self.server.client() as client:
            for key, (ttl_ms, dumped) in self._saved.items():
                client.restore(key, ttl_ms, dumped)


class RedisReplica:
    def __init__(self, server: RedisServer, primary: RedisServer) -> None:
        self._server = server
        self._primary = primary

    def join(self) -> None:
        with self._server.client() as client:
            client.replicaof("127.0.0.1", str(self._primary.port))
        self._primary.wait_until(confirms)

    def freeze(self) -> None:
        self._server.freeze()

    def thaw(self) -> None:
        self._server.thaw()

    def leave(self) -> None:
        self._server.stop()
        self._primary.wait_until(lambda client: client.info("replication")["connected_slaves"] == 0)


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A real server of each kind; emptied before each test by `backend` or by the test."""
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server
        assert denied(server) == [], "configs/redis.acl must permit all that a router does"


@pytest.fixture(scope="session", params=("memory", *KINDS))
def any_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemoryBackend | RedisBackend]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    folder = tmp_path_factory.mktemp(request.param)
    with running(request.param, folder) as server:
        yield RedisBackend(server)
        assert denied(server) == [], "configs/redis.acl must permit all that a router does"


@pytest.fixture
def backend(any_backend: Backend) -> Backend:
    any_backend.flush()
    return any_backend


@pytest.fixture
def play(backend: Backend) -> Callable[[Scenario], Any]:
    """Runs a scenario on fresh connections: `play(scenario)` gives what the scenario returned."""

    async def run(scenario: Scenario) -> Any:
        stores = backend.open()
        try:
            return await scenario(stores)
        finally:
            await stores.aclose()

    return lambda scenario: asyncio.run(run(scenario))
