"""The store of a contract test: the in-memory twin and every real server, under one interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from narwhal.ports import HandoffStore, LeaseStore, LogFeed, Registry
from narwhal.store.connection import Login, RedisConnection
from narwhal.store.feed import RedisFeed
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryFeed, MemoryRunner, MemoryServer
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner
from tests.support.redis import KINDS, RedisServer, running

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


class Backend(Protocol):
    """One server and what can happen to it."""

    def open(self) -> Stores: ...

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

    def open(self) -> Stores:
        runner = MemoryRunner(self.server)
        handoff, registry = ScriptHandoffStore(runner, CLUSTER), ScriptRegistry(runner, CLUSTER)
        return Stores(ScriptLeaseStore(runner, CLUSTER), handoff, registry, MemoryFeed(self.server))

    def flush(self) -> None:
        self.server.flush()

    def restart(self) -> None:
        self.server.restart()

    def save(self) -> None:
        self._saved = self.server.data.copy()

    def roll_back(self) -> None:
        self.server.restart(self._saved)


class RedisBackend:
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._saved: dict[str, tuple[int, bytes]] = {}

    def open(self) -> Stores:
        def connection() -> RedisConnection:
            return RedisConnection(self.server.address, Login("narwhal-test"))

        data = RedisRunner(connection())
        handoff, registry = ScriptHandoffStore(data, CLUSTER), ScriptRegistry(data, CLUSTER)
        lease = ScriptLeaseStore(RedisRunner(connection()), CLUSTER)
        return Stores(lease, handoff, registry, RedisFeed(connection(), CLUSTER))

    def flush(self) -> None:
        with self.server.client() as client:
            client.flushall()

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


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A real server of each kind; emptied before each test by `backend` or by the test."""
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="session", params=("memory", *KINDS))
def any_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemoryBackend | RedisBackend]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield RedisBackend(server)


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
