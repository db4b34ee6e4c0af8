"""What is resident where: reservations from placement to their end, and KV that is held for others. Pure.

| event | effect |
| --- | --- |
| prefill, decode | the leg is placed on the cheapest candidate: resident + 1, work added |
| prefill, decode, every candidate has its fill of such legs | NoSeat |
| release | resident - 1, work taken back; again: nothing |
| hand_off | the same for a prefill that completed, and its KV is held from now on |
| pulled | that KV is held no more; again: nothing |
| expire | nor is KV whose lease has ended |
| probe_prefills | a prefill of our own probe begins or ends: the interval is no pure decode; not resident |
| probe_left | its KV is held like any other's |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from narwhal.errors import InvariantViolation, NoSeat
from narwhal.model.engine import EngineProfile, Leg
from narwhal.model.pair_view import HeldKv
from narwhal.model.placement import Demand, Reservation, Resident
from narwhal.model.settings import ServingSettings, SloSettings
from narwhal.policy.cost import NEUTRAL, NEUTRAL_TPOT, EngineLoad
from narwhal.policy.kv_ledger import KvLedger, lease_s
from narwhal.policy.placement import Pick, pick_decode, pick_prefill


class Accounts:
    """`loads` has every engine, by ID; changed here alone, but for penalties.

    `profiled`: placement predicts from measured profiles; unless every engine has one, all are neutral
    (least resident work) and no target can be violated.
    """

    def __init__(
        self,
        engines: Iterable[str],
        profiles: Mapping[str, EngineProfile],
        *,
        slo: SloSettings,
        serving: ServingSettings,
    ) -> None:
        iids = tuple(engines)
        self.profiled = all(iid in profiles for iid in iids)
        self._ttft_s = slo.ttft_s if self.profiled else math.inf
        self._decode_limit = 1.0 if self.profiled else math.inf
        tpot_s = slo.tpot_s if self.profiled else NEUTRAL_TPOT
        self.loads = {
            iid: EngineLoad(iid, profiles[iid] if self.profiled else NEUTRAL, tpot_s=tpot_s) for iid in iids
        }
        self._prefill_seats = serving.prefill_concurrency
        self._decode_seats = serving.decode_concurrency
        """Legs of each kind that an engine has at a time at most; 0 = no limit."""
        self._open: dict[int, Reservation] = {}
        self._tickets = 0
        self._kv = KvLedger(iids, lease_s=lease_s(serving.handoff_timeout_s))
        self._unweighed: set[str] = set()
        """Engines whose held KV has changed since a prefill was placed last, the only thing it weighs on."""

    def resident(self) -> Mapping[str, Resident]:
        """Engine ID to the legs that this router has there now."""
        return {iid: Resident(load.prefills, load.decodes) for iid, load in self.loads.items()}

    def kv(self, now: float) -> Mapping[str, HeldKv]:
        """Engine ID to the KV that it holds for decodes that have not begun."""
        self.expire(now)  # No pass does it on a router that owns no more.
        held = self._kv.by_engine
        return {iid: HeldKv(one.handoffs, one.tokens, one.orphaned) for iid, one in held.items()}

    # --- legs ------------------------------------------------------------------------------------

    def prefill(self, candidates: tuple[EngineLoad, ...], demand: Demand) -> Reservation:
        """On one of the `candidates`, not empty. Raises NoSeat."""
        if self._unweighed:
            self.weigh()
        if self._prefill_seats:
            candidates = _seated([e for e in candidates if e.prefills < self._prefill_seats], Leg.PREFILL)
        pick = pick_prefill(candidates, demand.input_tokens, ttft_s=self._ttft_s)
        work = pick[0].prefill_begins(demand.input_tokens)
        return self._reserved(pick, Leg.PREFILL, work=work)

    def decode(self, candidates: tuple[EngineLoad, ...], demand: Demand) -> Reservation:
        """On one of the `candidates`, not empty. Raises NoSeat."""
        tokens = demand.kv_tokens
        if self._decode_seats:
            candidates = _seated([e for e in candidates if e.decodes < self._decode_seats], Leg.DECODE)
        pick = pick_decode(candidates, tokens, limit=self._decode_limit)
        pick[0].decode_changed(1, tokens)
        return self._reserved(pick, Leg.DECODE, work=tokens)

    def release(self, reservation: Reservation) -> bool:
        """Ends a reservation. False: it had ended, or is one of another fleet."""
        if self._open.pop(reservation.ticket, None) is None:
            return False
        load = self.loads[reservation.iid]
        if reservation.leg is Leg.DECODE:
            load.decode_changed(-1, -int(reservation.work))
            return True
        load.prefill_ends(reservation.work)
        return True

    # --- KV that is held -------------------------------------------------------------------------

    def hand_off(self, prefill: Reservation, tokens: int, *, since: float) -> None:
        """The prefill of so many `tokens` completed, at `since` at the earliest: its reservation ends and its
        KV waits to be pulled."""
        if self.release(prefill):
            self._kv.charge(prefill.ticket, prefill.iid, tokens=tokens, work=prefill.work, since=since)
            self._unweighed.add(prefill.iid)

    def pulled(self, prefill: Reservation) -> None:
        """A decode elsewhere has its first token, or that engine refused it: its KV is held no more."""
        iid = self._kv.release(prefill.ticket)
        if iid:
            self._unweighed.add(iid)

    def stays(self, prefill: Reservation) -> None:
        """Its decode runs on the same engine: nobody is to pull its KV."""
        self._kv.stays(prefill.ticket)

    def probe_prefills(self, iid: str) -> None:
        """A prefill of a probe begins or ends on the engine: decode drift has nothing to score meanwhile."""
        self.loads[iid].mix()

    def probe_left(self, iid: str, tokens: int, *, since: float) -> Reservation:
        """As `hand_off`, of a probe, which was never resident. For `pulled` or `stays`."""
        self._tickets += 1
        work = self.loads[iid].prefill_seconds(tokens)
        self._kv.charge(self._tickets, iid, tokens=tokens, work=work, since=since)
        self._unweighed.add(iid)
        return Reservation(self._tickets, iid, Leg.PREFILL, work, 0.0, False)

    def expire(self, now: float) -> None:
        """Ends what the leases of the engines have ended."""
        self._unweighed.update(self._kv.expire(now))

    def export_kv(self, now: float) -> Mapping[str, object]:
        return self._kv.export(now)

    def restore_kv(self, told: object, now: float) -> None:
        self._kv.restore(told, now)
        self._unweighed.update(self.loads)

    def weigh(self) -> None:
        """Puts the weight of held KV into the loads."""
        for iid in self._unweighed:
            held, load = self._kv.by_engine[iid], self.loads[iid]
            # Most blocks are pulled before the next prefill is placed, and nothing has changed.
            if (held.tokens, held.work) != load.held:
                load.hold(held.tokens, held.work)
        self._unweighed.clear()

    # --- inside ----------------------------------------------------------------------------------

    def _reserved(self, pick: Pick, leg: Leg, *, work: float) -> Reservation:
        self._tickets += 1
        load, cost, violates_slo = pick
        load.last_chosen = self._tickets
        reservation = Reservation(self._tickets, load.iid, leg, work, cost, violates_slo)
        self._open[self._tickets] = reservation
        return reservation

    def check_invariants(self) -> None:
        """Raises InvariantViolation unless the accounts equal the open reservations and what is held."""
        self._kv.check_invariants()
        for iid, held in self._kv.by_engine.items():
            if iid not in self._unweighed and self.loads[iid].held != (held.tokens, held.work):
                raise InvariantViolation(f"{iid}: held KV weighs other than it is")
        for iid, load in self.loads.items():
            legs = [r.leg for r in self._open.values() if r.iid == iid]
            if (load.prefills, load.decodes) != (legs.count(Leg.PREFILL), legs.count(Leg.DECODE)):
                raise InvariantViolation(f"{iid}: resident counts differ from the open reservations")
            if load.kv_tokens < 0 or load.prefill_work < 0.0:
                raise InvariantViolation(f"{iid}: negative resident work")


def _seated(free: list[EngineLoad], leg: Leg) -> tuple[EngineLoad, ...]:
    if not free:
        raise NoSeat(f"no engine has a seat for the {leg.value} leg")
    return tuple(free)
