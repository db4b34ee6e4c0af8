"""An operator who drains engines and waves at random times, and remembers what was promised: 200, and stored.

The orders go through the production `Maintenance`. Engines are asked for nothing but which process they are:
none comes back in these runs, so what was drained once must be out on every later owner.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from narwhal.engine.dialect import make_dialect
from narwhal.errors import EngineUnreachable
from narwhal.model.attestation import Attestation
from narwhal.model.identity import EngineIdentity
from narwhal.model.maintenance import DrainOrder, OrderOutcome
from narwhal.monitor.identity import Questions
from narwhal.monitor.judge import Judge
from narwhal.monitor.maintenance import Maintenance
from narwhal.monitor.probe_legs import Probed, ProbeLegs
from narwhal.monitor.readmissions import Looking, Ownership
from narwhal.ports import EngineReply
from narwhal.runtime.probing import ProbeBooks
from narwhal.telemetry.metrics import RouterMetrics
from tests.simulation.engines import ENGINES
from tests.support.looking import checking_with

if TYPE_CHECKING:
    from tests.simulation.routers import SimRouter

PAUSES_S = (1.0, 5.0)
WAVES = 0.1
"""Of all orders: after one all engines are out."""
METRICS = RouterMetrics()


class SilentEngines:
    """The `ControlClient` port: nobody is there."""

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply:
        raise EngineUnreachable("no engine answers here", iid=iid)

    async def post(self, iid: str, path: str, *, body: bytes, timeout_s: float) -> EngineReply:
        raise EngineUnreachable("no engine answers here", iid=iid)

    async def aclose(self) -> None:
        """Nothing is held."""


class SameProcesses:
    """The `Identities` port: every engine is the process that it always was."""

    async def identity(self, iid: str, *, timeout_s: float) -> EngineIdentity:
        return EngineIdentity("1.0", 1.0)

    async def attestation(self, iid: str, *, timeout_s: float) -> Attestation:
        raise EngineUnreachable("there is no sidecar", iid=iid)

    async def aclose(self) -> None:
        """Nothing is held."""


def maintenance_of(router: SimRouter) -> Maintenance:
    gate = router.parts.gate
    fleet, probed = router.fleet, Probed("tiny", health_s=5.0, leg_s=5.0)
    books = ProbeBooks(fleet.accounts, taken=fleet.upkeep.taken, late=lambda since: False)
    dialect = make_dialect("vllm", "nixl")
    legs = ProbeLegs(SilentEngines(), dialect, gate=gate, probed=probed, books=books)
    ask = Questions(SameProcesses(), legs, timeout_s=5.0)
    looking = Looking(
        checking_with(legs, ask),
        ask,
        attested=False,
        steps=lambda process: (),
        ring=lambda members: [],
    )
    judge = Judge(router.fleet, gate=gate, recorder=router.scribe, metrics=METRICS, clock=router.clock)
    ownership = Ownership(gate, router.parts.publisher, router.clock)
    return Maintenance(looking, ownership, fleet=router.fleet, judge=judge)


class Operator:
    """Gives orders to whoever owns. `promised`: drained engine -> the latest deadline that was answered with
    200 and is stored."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self.promised: dict[str, float] = {}
        self.wave = ""
        """The ID of the wave that was answered with 200 and is stored; nobody readmits it."""

    async def work(self, living: Callable[[], Collection[SimRouter]]) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._rng.uniform(*PAUSES_S))
            owner = next((router for router in living() if router.admits()), None)
            if owner is not None:
                wave, iid = self._rng.random() < WAVES, self._rng.choice(ENGINES).iid
                deadline_s = self._rng.uniform(60.0, 600.0)
                owner.main.spawn(self.drain(owner, "" if wave else iid, deadline_s))

    async def drain(self, owner: SimRouter, iid: str, deadline_s: float = 300.0) -> None:
        """One order, "" for a wave. What a router that is dead or stands still would answer, nobody hears."""
        order = DrainOrder((iid,) if iid else (), wave=not iid, deadline_s=deadline_s)
        answer = await owner.maintenance.drain(order)
        owner.trace(f"{owner.run} drain {iid or 'wave'}: {answer.outcome} {answer.error}{answer.not_durable}")
        if answer.outcome is OrderOutcome.DONE and not answer.not_durable:
            upkeep = owner.fleet.upkeep
            for one in (iid,) if iid else [spec.iid for spec in ENGINES]:
                deadline_at = upkeep.drains.record(one).deadline_at
                self.promised[one] = max(self.promised.get(one, 0.0), deadline_at or 0.0)
            if not iid:
                self.wave = upkeep.wave.wave_id or "none"

    def lost_by(self, owner: SimRouter) -> str:
        """What the present owner does not know of what was promised, "" for nothing."""
        if self.wave and self.wave != owner.fleet.upkeep.wave.wave_id:
            return f"{self.wave} was drained, {owner.run} knows {owner.fleet.upkeep.wave.wave_id}"
        for iid, deadline_at in self.promised.items():
            record = owner.fleet.upkeep.drains.record(iid)
            if not record.out:
                return f"{iid} was drained, and {owner.run} has it in placement"
            if record.deadline_at is None or record.deadline_at < deadline_at:
                return f"{iid} was drained until {deadline_at}, {owner.run} knows {record.deadline_at}"
        return ""
