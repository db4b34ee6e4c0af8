"""Orders to drain and readmit engines, carried out: what is asked of engines, and when it is answered.

A drain takes its engines out of placement before anything is asked, then captures which processes they are.
The checks of a readmission are `monitor.readmissions`'. An answer waits until what was done is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from narwhal.errors import EngineError, IdentityError, StoreError
from narwhal.model.engine_metrics import read_load
from narwhal.model.identity import METRICS_PATH
from narwhal.model.lease import Published
from narwhal.model.maintenance import Captured, DrainOrder, OrderAnswer, OrderOutcome, WorkLeft
from narwhal.monitor.beside import Beside
from narwhal.monitor.group import gathered
from narwhal.monitor.judge import Judge
from narwhal.monitor.readmissions import Looking, Ownership, Readmissions
from narwhal.policy.fleet import Fleet

NOT_OWNER = "this router does not control the fleet: ask the owner"
LOST = "this router lost control of the fleet meanwhile: look at the owner's lifecycle document, then repeat"


class Maintenance:
    """Main loop only."""

    def __init__(self, looking: Looking, ownership: Ownership, *, fleet: Fleet, judge: Judge) -> None:
        self._looking = looking
        self._gate = ownership.gate
        self._publisher = ownership.publisher
        self._clock = ownership.clock
        self._fleet = fleet
        self._judge = judge
        self._readmissions = Readmissions(looking, ownership, fleet=fleet, judge=judge)
        self._settling: Beside[str] = Beside()

    # --- orders ----------------------------------------------------------------------------------

    async def drain(self, order: DrainOrder) -> OrderAnswer:
        """Answers when the engines are out, their processes on record and both stored."""
        now, upkeep = self._clock.now(), self._fleet.upkeep
        refused = self._refused(now, upkeep.orders.refuses_drain(order, now))
        if refused is not None:
            return refused
        wall = self._clock.wall()
        deadline_at = round(wall + order.deadline_s, 3)
        targets = upkeep.orders.targets(order)
        if upkeep.orders.is_wave(order):
            effects = upkeep.drain_wave(f"wave-{wall * 1000:.0f}", deadline_at=deadline_at)
            self._readmissions.end(None)
        else:
            effects = upkeep.drain(targets[0], deadline_at=deadline_at)
            self._readmissions.end(targets[0])
        self._judge.carry_out(effects, now)
        error = _not_captured(dict(zip(targets, await gathered(self._capture, targets), strict=True)))
        not_durable = await self._store()
        # Lost and owned again meanwhile: what was restored need not know of it.
        kept = upkeep.drains.out().issuperset(targets)
        if not (kept and self._gate.may_admit(self._clock.now())):
            return OrderAnswer(OrderOutcome.UNAVAILABLE, LOST)
        return OrderAnswer(OrderOutcome.UNAVAILABLE if error else OrderOutcome.DONE, error, not_durable)

    async def readmit(self, order: DrainOrder) -> OrderAnswer:
        """Answers when the checks have ended and what they came to is stored."""
        now, upkeep = self._clock.now(), self._fleet.upkeep
        refused = self._refused(now, upkeep.orders.refuses_readmit(order))
        if refused is not None:
            return refused
        wave, iid = upkeep.orders.is_wave(order), upkeep.orders.targets(order)[0]
        task = self._readmissions.of_wave() if wave else self._readmissions.of(iid)
        error = await ended(task)
        not_durable = await self._store()
        if not self._gate.may_admit(self._clock.now()):
            return OrderAnswer(OrderOutcome.UNAVAILABLE, LOST)
        if not error:
            # Looked at after all else: it may have been taken out again while it was stored.
            error = upkeep.why_out(None if wave else iid)
        return OrderAnswer(OrderOutcome.REFUSED if error else OrderOutcome.DONE, error, not_durable)

    # --- the monitor's part ----------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Once a pass: deadlines that passed, and whether drained engines still have work."""
        upkeep = self._fleet.upkeep
        self._judge.carry_out(upkeep.expire(self._clock.wall()), now)
        for iid in upkeep.drains.unsettled():
            if upkeep.drains.record(iid).captured is not None:
                self._settling.begin(iid, partial(self._settle, iid))
        self._settling.take_in()

    def abandon(self) -> None:
        """The ownership is over, or another one begins: what began before is over."""
        self._settling.abandon()
        self._readmissions.abandon()

    async def aclose(self) -> None:
        self.abandon()
        await self._settling.aclose()
        await self._readmissions.aclose()

    # --- inside ----------------------------------------------------------------------------------

    def _refused(self, now: float, why: str) -> OrderAnswer | None:
        if not self._gate.may_admit(now):
            return OrderAnswer(OrderOutcome.UNAVAILABLE, NOT_OWNER)
        return OrderAnswer(OrderOutcome.REFUSED, why) if why else None

    async def _capture(self, iid: str) -> str:
        """Puts the process of a drained engine on record, once. Why not, "" if it is there."""
        upkeep = self._fleet.upkeep
        if upkeep.drains.record(iid).captured is not None:
            return ""
        try:
            captured = await self._identity(iid)
        except (EngineError, IdentityError) as error:
            return str(error)
        if upkeep.drains.record(iid).out:
            upkeep.captured(iid, captured)
        return ""

    async def _identity(self, iid: str) -> Captured:
        look = self._looking
        if not look.attested:
            live = await look.identities.live(iid)
            return Captured(live.process_start, live.vllm_version, "")
        attestation, live = await look.identities.together(iid)
        if not live.started_with(attestation.identity):
            raise IdentityError("the sidecar attests another process than the one that answers")
        return Captured(live.process_start, live.vllm_version, attestation.digest)

    async def _settle(self, iid: str) -> None:
        """The engine is asked first, our own books are read after: nothing is sent there in between."""
        try:
            load = read_load(await self._looking.checking.legs.ask(iid, METRICS_PATH))
        except EngineError:
            return  # asked again in the next pass
        now, fleet = self._clock.now(), self._fleet
        if load is None or not self._gate.may_admit(now):
            return
        resident, kv = fleet.resident(), fleet.kv(now)
        # In a wave the decode of any member's prefill may still come to any other.
        before = fleet.engines if fleet.upkeep.drains.record(iid).wave_id is not None else (iid,)
        work = WorkLeft(
            sum(resident[one].prefill for one in before),
            resident[iid].decode,
            sum(kv[one].handoffs for one in before),
            load.running,
            load.waiting,
        )
        self._judge.carry_out(fleet.upkeep.settle(iid, work), now)

    async def _store(self) -> str:
        """Why what was done could be lost with this router; "" when it is stored."""
        found = []
        try:
            reply = await self._publisher.snapshot()
            if reply is not None and not isinstance(reply, Published):
                found.append("the store refused the new state")
        except StoreError as error:
            found.append(f"the store has not confirmed it: {error}")
        try:
            await self._publisher.checkpoint()
        except OSError as error:
            found.append(f"the checkpoint could not be written: {error}")
        return "; ".join(found)


def _not_captured(whys: Mapping[str, str]) -> str:
    """The sentence about drained engines whose process could not be read, "" where all were. `whys`: engine
    to why not, "" if it was."""
    failed = {iid: why for iid, why in whys.items() if why}
    if len(failed) <= 1:
        return "".join(
            f"{iid} is out of placement, but which process it is could not be read ({why}): repeat the drain"
            for iid, why in failed.items()
        )
    told = "; ".join(f"{iid}: {why}" for iid, why in failed.items())
    return (
        f"{', '.join(failed)} are out of placement, but which processes they are could not be read ({told}): "
        "repeat the drain"
    )


async def ended(task: asyncio.Task[str]) -> str | None:
    """What a task came to that others may wait for too: a caller that leaves ends nothing. None: it was
    cancelled. Raises what else it ended with."""
    await asyncio.wait({task})
    return None if task.cancelled() else task.result()
