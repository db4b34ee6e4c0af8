"""The wired orders to drain and readmit over simulated engines: passes are run by hand, engines are restarted
and broken as a test says."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from narwhal.cluster.local import LocalGate
from narwhal.model.lease import PublishReply
from narwhal.model.maintenance import DrainOrder, DrainRecord, OrderAnswer
from narwhal.monitor.drains import DrainsStage
from narwhal.monitor.judge import Judge
from narwhal.monitor.maintenance import Maintenance
from narwhal.policy.fleet import Fleet
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.engines import call, engines_here
from tests.support.probing_rig import wired
from tests.support.router import Router
from tests.support.serving import specs
from tests.support.settings import engine_settings, fleet_config, recovery_settings
from tests.support.ticking import TickingClock

BUDGET_S = 2.0
CHECKS = ["health", "attestation", "model", "process", "generation", "kv_transfer", "final_health"]
WAVE = DrainOrder((), wave=True)


class Disk:
    """A publisher whose disk may be full or slow: implements ports.StatePublisher."""

    def __init__(self) -> None:
        self.full = False
        self.ready = asyncio.Event()
        """Writes wait for it."""
        self.ready.set()
        self.written = 0

    async def snapshot(self) -> PublishReply | None:
        return None

    async def checkpoint(self) -> None:
        await self.ready.wait()
        if self.full:
            raise OSError(28, "No space left on device")
        self.written += 1


@dataclass
class Rig:
    stands: list[Stand]
    clock: TickingClock
    gate: LocalGate
    fleet: Fleet
    recorder: MemoryRecorder
    maintenance: Maintenance
    stage: DrainsStage
    disk: Disk
    judge: Judge

    def order(self, number: int, fault: str, **fields: Any) -> None:
        self.stands[number].engine.order(parse_fault({"fault": fault, **fields}))

    def restarted(self, number: int) -> None:
        """Another process answers from now on, as far as anybody can tell."""
        self.order(number, "process_start", shift=50.0)

    async def drain_wave(self) -> OrderAnswer:
        return await self.maintenance.drain(WAVE)

    async def readmit_wave(self) -> OrderAnswer:
        return await self.maintenance.readmit(WAVE)

    async def drain(self, iid: str, deadline_s: float = 300.0) -> OrderAnswer:
        return await self.maintenance.drain(DrainOrder((iid,), deadline_s=deadline_s))

    async def readmit(self, iid: str) -> OrderAnswer:
        return await self.maintenance.readmit(DrainOrder((iid,)))

    def record(self, iid: str) -> DrainRecord:
        return self.fleet.upkeep.drains.record(iid)

    async def ready_to_stop(self, iid: str) -> None:
        for _ in range(200):
            await self.stage.run(self.clock.now())
            if self.record(iid).ready_to_stop:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{iid} never is ready to stop: {self.record(iid)}")

    def serves(self, iid: str) -> bool:
        return self.fleet.eligible(iid, self.clock.now())

    def events(self) -> list[str]:
        return [kind for kind, _ in self.recorder.events]


@asynccontextmanager
async def rig(count: int = 3, *, pinned: bool = False, **recovery: Any) -> AsyncIterator[Rig]:
    """Engines e0 (prefill), e1, e2 (decode), unpinned unless `pinned`."""
    async with engines_here(count) as stands:
        config = fleet_config(
            *(replace(spec, pin=pinned) for spec in specs(stands, roles="p" + "d" * (count - 1))),
            model="simulated",
            engine=engine_settings(health_timeout_s=BUDGET_S, first_token_timeout_s=BUDGET_S),
            recovery=recovery_settings(**recovery),
        )
        own, disk = wired(config), Disk()
        maintenance = own.probing.maintenance(disk)
        stage = DrainsStage(maintenance)
        yield Rig(
            list(stands), own.clock, own.gate, own.fleet, own.recorder, maintenance, stage, disk, own.judge
        )
        await stage.aclose()
        await own.probing.aclose()


def post(router: Router, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    try:
        return 200, call("POST", f"{router.url}/narwhal/lifecycle/{path}", body)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
