"""The `narwhal-check` run: fleet, engines, sidecars and profile store, wired to the gates."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import uvloop

from narwhal.config.profiles import read_profiles
from narwhal.errors import ConfigError
from narwhal.measure.gates.bench import Bench, Extent, Store
from narwhal.measure.gates.run import GATES, run_gates
from narwhal.measure.gates.verdict import Finding, GateReport, Verdict
from narwhal.measure.legs import Legs
from narwhal.model.settings import FleetConfig
from narwhal.runtime.engine_access import engine_access, engine_auth

__all__ = ["GATES", "Extent", "Finding", "GateReport", "Verdict", "Watcher", "check_fleet"]


class Watcher(Protocol):
    """Whoever waits for the gates."""

    def begin(self, gate: str) -> None:
        """This gate is tried now."""

    def progress(self, done: int, total: int) -> None:
        """Of the gate that was begun last."""

    def tell(self, report: GateReport) -> None:
        """That gate's outcome."""


def check_fleet(config: FleetConfig, extent: Extent, *, api_key: str, watcher: Watcher) -> list[GateReport]:
    """All gates in their order."""
    return uvloop.run(_check(config, extent, api_key=api_key, watcher=watcher))


async def _check(config: FleetConfig, extent: Extent, *, api_key: str, watcher: Watcher) -> list[GateReport]:
    async with engine_access(config, api_key=api_key) as (access, identities):
        bench = Bench(
            config=config,
            legs=Legs(access),
            identities=identities,
            store=store_of(config),
            extent=extent,
            engine_auth=engine_auth(api_key),
            progress=watcher.progress,
        )
        return await run_gates(bench, watcher.tell, begin=watcher.begin)


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
