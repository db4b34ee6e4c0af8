"""The `narwhal-check` run: fleet, engines, sidecars and profile store, wired to the gates."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol

import uvloop

from narwhal.config.profiles import read_profiles
from narwhal.errors import ConfigError, StoreError
from narwhal.measure.gates.bench import Bench, Extent, Store
from narwhal.measure.gates.run import GATES, run_gates
from narwhal.measure.gates.verdict import Finding, GateReport, Verdict
from narwhal.measure.legs import Legs
from narwhal.model.settings import FleetConfig, StoreAddress
from narwhal.runtime.engine_access import engine_access, engine_auth
from narwhal.store.advice import inspect_server
from narwhal.store.connection import Login
from narwhal.store.quorum import Quorum
from narwhal.store.sentinel import connection_to

__all__ = ["GATES", "Extent", "Finding", "GateReport", "Verdict", "Watcher", "check_fleet", "store_warnings"]

STORE_CALL_S = 2.0
PATIENCE_S = 30.0
"""With a small request, whatever the fleet file allows to a large one: an engine that is silent for so long
is not fit, and whoever waits wants to know."""
TICK_S = 5.0


class Watcher(Protocol):
    """Whoever waits for the gates."""

    def begin(self, gate: str) -> None:
        """This gate is tried now."""

    def progress(self, done: int, total: int) -> None:
        """Of the gate that was begun last."""

    def waiting(self, seconds: float) -> None:
        """The gates have been tried for so long; told again and again."""

    def tell(self, report: GateReport) -> None:
        """That gate's outcome."""


def check_fleet(config: FleetConfig, extent: Extent, *, api_key: str, watcher: Watcher) -> list[GateReport]:
    """All gates in their order."""
    return uvloop.run(_check(config, extent, api_key=api_key, watcher=watcher))


async def _check(config: FleetConfig, extent: Extent, *, api_key: str, watcher: Watcher) -> list[GateReport]:
    async with engine_access(config, api_key=api_key) as (access, identities):
        bench = Bench(
            config=config,
            legs=Legs(access, patience_s=PATIENCE_S),
            identities=identities,
            store=store_of(config),
            extent=extent,
            engine_auth=engine_auth(api_key),
            progress=watcher.progress,
        )
        ticking = asyncio.create_task(_tick(watcher))
        try:
            return await run_gates(bench, watcher.tell, begin=watcher.begin)
        finally:
            ticking.cancel()


async def _tick(watcher: Watcher) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(TICK_S)
        watcher.waiting(time.monotonic() - began)


def store_of(config: FleetConfig) -> Store:
    """The profile store for the gates: one that cannot be loaded is a finding, and stops no other gate."""
    path = config.profiles.path
    if not Path(path).exists():
        return Store(path, there=False)
    try:
        reading = read_profiles(path, config.engines)
    except ConfigError as error:
        return Store(path, there=True, problems=error.problems)
    return Store(path, there=True, profiles=reading.profiles, engine_auth=reading.engine_auth)


def store_warnings(address: StoreAddress, password: str, *, min_replicas: int | None) -> tuple[str, ...]:
    """What a router would warn of at start, or refuse, about its store; may be empty."""
    return uvloop.run(_store_warnings(address, password, min_replicas=min_replicas))


async def _store_warnings(
    address: StoreAddress, password: str, *, min_replicas: int | None
) -> tuple[str, ...]:
    quorum = Quorum(min_replicas)
    connection = connection_to(address, Login("narwhal-check", password), quorum=quorum)
    try:
        return await inspect_server(connection, quorum=quorum, timeout_s=STORE_CALL_S)
    except StoreError as error:
        return (f"no router can use this store: {error}",)
    finally:
        await connection.aclose()
