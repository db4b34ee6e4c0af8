"""Orders to drain and readmit engines, carried out: what is asked of engines, and when it is answered.

A drain takes its engine out of placement before anything is asked, then captures which process it is. A
readmission runs the checks of failures.md section 7 as a task of its own: a caller that leaves ends nothing,
and one that comes meanwhile gets the same answer. An answer waits until what was done is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from narwhal.clock import Clock
from narwhal.errors import EngineError, IdentityError, StoreError
from narwhal.model.engine_metrics import read_load
from narwhal.model.evidence import Validated
from narwhal.model.identity import METRICS_PATH, SAME_START_S
from narwhal.model.lease import Published
from narwhal.model.maintenance import (
    Captured,
    DrainOrder,
    OrderAnswer,
    OrderOutcome,
    WorkLeft,
)
from narwhal.monitor.beside import Beside
from narwhal.monitor.judge import Judge
from narwhal.monitor.probe_legs import ProbeLegs
from narwhal.monitor.validation import Result, Step, Validation
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import FAILED, PASSED, PROCESS
from narwhal.ports import ControlGate, Identities, StatePublisher

NOT_OWNER = "this router does not control the fleet: ask the owner"
LOST = "this router lost control of the fleet meanwhile: look at the owner's lifecycle document, then repeat"
NO_CAPTURE = "which process was drained is not on record: repeat the drain while it runs, then restart it"


@dataclass(frozen=True, slots=True)
class Looking:
    """How engines are looked at. `attested`: they have sidecars. `steps` gives the readmission checks with
    this step as `process`."""

    legs: ProbeLegs
    identities: Identities
    attested: bool
    timeout_s: float
    steps: Callable[[Step], tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whether this router may act, and where what it did is kept."""

    gate: ControlGate
    publisher: StatePublisher
    clock: Clock


class Maintenance:
    """Main loop only."""

    def __init__(self, looking: Looking, ownership: Ownership, *, fleet: Fleet, judge: Judge) -> None:
        self._looking = looking
        self._gate = ownership.gate
        self._publisher = ownership.publisher
        self._clock = ownership.clock
        self._fleet = fleet
        self._judge = judge
        self._validation = Validation(looking.steps(Step(PROCESS, self._process)))
        self._validating: dict[str, asyncio.Task[None]] = {}
        self._starts: dict[str, float] = {}
        """Process starts that the validations under way have found."""
        self._settling: Beside[str] = Beside()

    # --- orders ----------------------------------------------------------------------------------

    async def drain(self, order: DrainOrder) -> OrderAnswer:
        """Answers when the engine is out, its process on record and both stored."""
        now, upkeep = self._clock.now(), self._fleet.upkeep
        refused = self._refused(now, upkeep.refuses_drain(order, now))
        if refused is not None:
            return refused
        iid = order.engines[0]
        deadline_at = round(self._clock.wall() + order.deadline_s, 3)
        self._judge.carry_out(upkeep.drain(iid, deadline_at=deadline_at), now)
        error = await self._capture(iid)
        not_durable = await self._store()
        if not self._gate.may_admit(self._clock.now()):
            return OrderAnswer(OrderOutcome.UNAVAILABLE, LOST)
        return OrderAnswer(OrderOutcome.UNAVAILABLE if error else OrderOutcome.DONE, error, not_durable)

    async def readmit(self, order: DrainOrder) -> OrderAnswer:
        """Answers when the checks have ended and what they came to is stored."""
        now, upkeep = self._clock.now(), self._fleet.upkeep
        refused = self._refused(now, upkeep.refuses_readmit(order))
        if refused is not None:
            return refused
        iid = order.engines[0]
        await asyncio.shield(self._validation_of(iid))
        not_durable = await self._store()
        if not self._gate.may_admit(self._clock.now()):
            return OrderAnswer(OrderOutcome.UNAVAILABLE, LOST)
        record = upkeep.drains.record(iid)
        outcome = OrderOutcome.REFUSED if record.error else OrderOutcome.DONE
        return OrderAnswer(outcome, record.error, not_durable)

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
        """Another ownership begins: what began before is over."""
        self._settling.abandon()
        for task in self._validating.values():
            task.cancel()

    async def aclose(self) -> None:
        self.abandon()
        await self._settling.aclose()
        await asyncio.gather(*self._validating.values(), return_exceptions=True)

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
            return f"{iid} is out of placement, but which process it is could not be read ({error}): repeat"
        if upkeep.drains.record(iid).out:
            upkeep.captured(iid, captured)
        return ""

    async def _identity(self, iid: str) -> Captured:
        """The attestation first: only a later look at the engine proves it."""
        look, digest = self._looking, ""
        attestation = None
        if look.attested:
            attestation = await look.identities.attestation(iid, timeout_s=look.timeout_s)
            digest = attestation.digest
        live = await look.identities.identity(iid, timeout_s=look.timeout_s)
        if attestation is not None and not live.started_with(attestation.identity):
            raise IdentityError("the sidecar attests another process than the one that answers")
        return Captured(live.process_start, live.vllm_version, digest)

    async def _settle(self, iid: str) -> None:
        """The engine is asked first, our own books are read after: nothing is sent there in between."""
        try:
            load = read_load(await self._looking.legs.ask(iid, METRICS_PATH))
        except EngineError:
            return  # asked again in the next pass
        now, fleet = self._clock.now(), self._fleet
        if load is None or not self._gate.may_admit(now):
            return
        resident = fleet.resident()[iid]
        work = WorkLeft(
            resident.prefill, resident.decode, fleet.kv(now)[iid].handoffs, load.running, load.waiting
        )
        self._judge.carry_out(fleet.upkeep.settle(iid, work), now)

    def _validation_of(self, iid: str) -> asyncio.Task[None]:
        """The one under way, else a new one."""
        if iid not in self._validating:
            self._fleet.upkeep.drains.begin(iid)
            task = asyncio.create_task(self._validate(iid), name=f"readmit-{iid}")
            self._validating[iid] = task
            task.add_done_callback(lambda _: self._validating.pop(iid, None))
        return self._validating[iid]

    async def _validate(self, iid: str) -> None:
        told = Validated(iid, (), conclusive=False)
        self._starts.pop(iid, None)
        try:
            told = await self._validation.run(iid)
        finally:
            # Also when we are cancelled: a record must not say for ever that it is being validated.
            now = self._clock.now()
            if not self._gate.may_admit(now):
                told = replace(told, conclusive=False)
            start = self._starts.pop(iid, None)
            self._judge.carry_out(self._fleet.upkeep.validated(told, process_start=start, now=now), now)

    async def _process(self, iid: str) -> Result:
        """Planned maintenance means a restart: the process must be newer than the one on record."""
        captured = self._fleet.upkeep.drains.record(iid).captured
        if captured is None:
            return FAILED, NO_CAPTURE
        try:
            live = await self._looking.identities.identity(iid, timeout_s=self._looking.timeout_s)
        except IdentityError as error:
            return FAILED, str(error)
        self._starts[iid] = live.process_start
        if live.process_start <= captured.process_start + SAME_START_S:
            return FAILED, f"its process is not newer than the drained one ({live.words}): restart the engine"
        return PASSED, f"{live.words}, the drained one at {captured.process_start!r}"

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
