"""One complete attempt: prefill placement, prefill leg, KV handoff, decode placement, decode leg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from functools import partial
from math import inf

from narwhal.errors import (
    EngineError,
    EngineRefused,
    HandoffExpired,
    NoEngine,
    NoSeat,
    NotOwner,
    RequestExpired,
    StaleEpoch,
)
from narwhal.model.engine import Leg
from narwhal.model.placement import Reservation
from narwhal.model.settings import ServingSettings
from narwhal.policy.faults import classify
from narwhal.policy.fleet import Fleet
from narwhal.policy.kv_ledger import too_old
from narwhal.policy.left_legs import WAITED_S
from narwhal.ports import KvDescriptor
from narwhal.serving.control import ControlCheck
from narwhal.serving.decode import DecodeLeg
from narwhal.serving.job import Job
from narwhal.serving.ledger import Entry
from narwhal.serving.leg import EngineAccess, Place, new_engine_rid
from narwhal.serving.output import note_output, open_output
from narwhal.serving.prefill import PrefillLeg
from narwhal.serving.seats import Seats, Wish
from narwhal.serving.witness import Witness


class Attempt:
    """Runs attempts. Each has fresh engine request IDs and a fresh KV handoff."""

    def __init__(
        self,
        access: EngineAccess,
        settings: ServingSettings,
        *,
        fleet: Fleet,
        control: ControlCheck,
        witness: Witness,
    ) -> None:
        self._clock = access.clock
        self._handoff_s = settings.handoff_timeout_s
        self._response_limit = settings.max_response_bytes
        self._fleet = fleet
        self._control = control
        self._witness = witness
        first_token_s = access.settings.first_token_timeout_s
        self._limits_s = {Leg.PREFILL: settings.prefill_timeout_s, Leg.DECODE: first_token_s}
        self._prefill = PrefillLeg(access, timeout_s=settings.prefill_timeout_s)
        self._decode = DecodeLeg(access)
        self.seats = Seats(fleet, clock=access.clock)
        limited = settings.prefill_concurrency or settings.decode_concurrency
        self.freed = self.seats.freed if limited else None
        """For the ledger; None: nobody ever waits for a seat."""

    async def run(self, job: Job, avoid: Set[str]) -> None:
        """Returns when the whole answer has been written to the client.

        `avoid`: engines whose leg failed in this request. Raises NotOwner, NoEngine, EngineError,
        RequestExpired or HandoffExpired; whether output was visible by then, `job.stream` tells.
        """
        job.entry.attempt()
        try:
            producer = self._reserve_prefill(job, avoid)
        except NoSeat:
            producer = await self._seat_for_prefill(job, avoid)
        descriptor = await self._run_prefill(job, producer)
        job.entry.hand_off(producer, job.demand.input_tokens, since=descriptor.since)
        await self._run_decode(job, producer, descriptor=descriptor, avoid=avoid)

    def _reserve_prefill(self, job: Job, avoid: Set[str]) -> Reservation:
        if self.seats.prefill.waiting:
            raise NoSeat("others wait for one")
        reservation = self._fleet.reserve_prefill(job.demand, self._clock.now(), avoid=avoid)
        if reservation is None:
            raise self._control.refusal() or NoEngine("no engine can take the prefill leg now")
        job.entry.hold(reservation)
        return reservation

    async def _seat_for_prefill(self, job: Job, avoid: Set[str]) -> Reservation:
        wish = Wish(
            lambda now: self._fleet.reserve_prefill(job.demand, now, avoid=avoid),
            job.deadline.at,
            lambda: RequestExpired("the request's deadline passed in line for a prefill seat"),
            self._control.refusal,
        )
        reservation = await self.seats.prefill.turn(wish)
        if reservation is None:
            raise self._control.refusal() or NoEngine("no engine can take the prefill leg now")
        job.entry.hold(reservation)
        return reservation

    async def _seat_for_decode(
        self, job: Job, since: float, *, producer: str, avoid: Set[str]
    ) -> Reservation | None:
        """Its KV may wait since `since`, and its prefill is done: a loss of control does not end it."""
        stale_at = since + self._handoff_s
        late = (
            partial(HandoffExpired, "the KV handoff grew too old in line for a decode seat")
            if stale_at < job.deadline.at
            else partial(RequestExpired, "the request's deadline passed in line for a decode seat")
        )
        wish = Wish(
            lambda now: self._fleet.reserve_decode(job.demand, now, producer=producer, avoid=avoid),
            min(stale_at, job.deadline.at),
            late,
        )
        return await self.seats.decode.turn(wish)

    async def _run_prefill(self, job: Job, producer: Reservation) -> KvDescriptor:
        entry, sent_before = job.entry, job.entry.dispatched
        entry.sent_at = inf
        rid = new_engine_rid()
        entry.row.prefill_iid, entry.row.prefill_rid = producer.iid, rid
        place = Place(producer.iid, rid, job.deadline, self._permit_new(entry))
        try:
            descriptor = await self._prefill.run(job.request, place)
        except EngineError as error:
            entry.leg_failed(Leg.PREFILL, error, failure=classify(error))
            verdict = self._control.overruled(error) if isinstance(error, StaleEpoch) else error
            if isinstance(verdict, NotOwner):
                # The fence stands before the engine: a leg that it refused has not begun.
                entry.dispatched = sent_before
                raise verdict from None
            self._witness.failed(verdict, Leg.PREFILL, request=job.request, count=job.demand.count)
            raise
        except (asyncio.CancelledError, RequestExpired):
            self._left(producer, entry, sent_at=entry.sent_at)
            raise
        if self._fleet.troubles.since(producer.iid, entry.sent_at):
            # It, or the way to it, stood still in this prefill: its answer may be as old as the question.
            descriptor.since = min(descriptor.since, entry.sent_at)
        self._witness.succeeded(producer.iid, Leg.PREFILL, remote_engine_id=descriptor.producer)
        return descriptor

    async def _run_decode(
        self, job: Job, prefill: Reservation, *, descriptor: KvDescriptor, avoid: Set[str]
    ) -> None:
        entry, now, producer = job.entry, self._clock.now(), prefill.iid
        try:
            if self.seats.decode.waiting:
                raise NoSeat("others wait for one")
            reservation = self._fleet.reserve_decode(job.demand, now, producer=producer, avoid=avoid)
        except NoSeat:
            reservation = await self._seat_for_decode(job, descriptor.since, producer=producer, avoid=avoid)
        if reservation is None:
            raise self._control.refusal() or NoEngine("no engine can take the decode leg now")
        entry.hold(reservation)
        rid = new_engine_rid()
        entry.row.decode_iid, entry.row.decode_rid = reservation.iid, rid
        entry.row.crossed = crossed = reservation.iid != producer
        permit, peer = (self._permit_handoff(descriptor.since), producer) if crossed else (None, "")
        place = Place(reservation.iid, rid, job.deadline, permit)
        output = open_output(job, self._clock, limit=self._response_limit)
        pulled = partial(self._fleet.accounts.pulled, prefill)
        if crossed:
            output.tally.on_first = pulled
        else:
            self._fleet.accounts.stays(prefill)
        open_decode = entry.decodes.begin(reservation.iid, output.tally, input_tokens=job.demand.input_tokens)
        try:
            kv = descriptor if crossed else None
            await self._decode.run(job.request, place, descriptor=kv, output=output)
            self._witness.succeeded(reservation.iid, Leg.DECODE, peer=peer, began=now)
        except HandoffExpired as error:
            entry.leg_failed(Leg.DECODE, error)
            raise
        except EngineError as error:
            entry.leg_failed(Leg.DECODE, error, failure=classify(error))
            if crossed and isinstance(error, EngineRefused) and error.about_the_request:
                pulled()
            self._witness.failed(error, Leg.DECODE, request=job.request, peer=peer)
            raise
        except (asyncio.CancelledError, RequestExpired):
            if output.tally.first_output_at is None:
                self._left(reservation, entry, sent_at=now)
            raise
        finally:
            entry.decodes.end(open_decode)
            note_output(entry.row, output.tally, began=entry.began, handed_off_at=now)

    def _left(self, leg: Reservation, entry: Entry, *, sent_at: float) -> None:
        """Unless the engine brought tokens of others meanwhile: then it is busy, and alive."""
        waited_s = self._clock.now() - sent_at
        if waited_s >= WAITED_S and entry.decodes.quiet_s(leg.iid) >= waited_s:
            self._witness.left(leg.iid, leg.leg, sent_at=sent_at, limit_s=self._limits_s[leg.leg])

    def _permit_new(self, entry: Entry) -> Callable[[], None]:
        def permit() -> None:
            entry.sent_at = self._control.demand()
            entry.dispatched = True
            entry.row.epoch = self._control.gate.epoch

        return permit

    def _permit_handoff(self, since: float) -> Callable[[], None]:
        """A KV handoff that is too old may point at blocks of another request: wrong text, unnoticed."""

        def permit() -> None:
            if too_old(since, self._clock.now(), bound_s=self._handoff_s):
                raise HandoffExpired("the KV handoff grew too old before its decode could be sent")

        return permit
