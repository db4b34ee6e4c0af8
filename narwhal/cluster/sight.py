"""The lease as the keeper sees it, put into one value for all readers."""

from __future__ import annotations

import logging
from dataclasses import replace

from narwhal.errors import StoreDamaged, StoreError
from narwhal.model.control import OwnerRef, RouterState
from narwhal.model.leadership import LeaseSight, Release
from narwhal.model.lease import LeaseState, LeaseView, holder_of
from narwhal.policy.claims import CLAIM_REASON
from narwhal.policy.election import Election
from narwhal.policy.phases import HOLDING
from narwhal.policy.tenure import Tenure

log = logging.getLogger("narwhal.cluster")


class StoreMeter:
    """How the lease connection fares. Says in the log when the store falls silent, when what it holds cannot
    be used, and when it is back."""

    def __init__(self) -> None:
        self.reachable = False
        self.failures = 0
        self.latency_s: float | None = None
        self.damaged = ""
        """Which key holds what no router wrote, "" for none."""

    def answered(self, latency_s: float) -> None:
        if self.failures and not self.reachable:
            log.warning("the store answers again")
        self.reachable, self.damaged = True, ""
        self.latency_s = latency_s

    def failed(self, error: StoreError) -> None:
        damaged = str(error) if isinstance(error, StoreDamaged) else ""
        if damaged and damaged != self.damaged:
            log.warning("the lease cannot be used until a key is mended or deleted: %s", damaged)
        elif not damaged and (self.reachable or not self.failures):
            log.warning("the store gives no answer: %s", error)
        self.reachable, self.damaged = False, damaged or self.damaged
        self.failures += 1
        self.latency_s = None


class Lookout:
    """Shows the own tenure while it is held, else the record as last seen."""

    def __init__(self, me: OwnerRef) -> None:
        self._me = me
        self._own = LeaseSight()
        self._older: LeaseView | None = None
        """What was peeked before the own tenure: the tenure is the later sight of the lease."""

    def sight(self, machine: Election, meter: StoreMeter) -> LeaseSight:
        tenure, view = machine.tenure, machine.candidacy.view
        if tenure and (machine.phase in HOLDING or machine.phase is RouterState.DRAINING):
            base = self._own = _own(tenure, self._me, ttl_s=machine.timings.ttl_s)
            self._older = view
        else:
            base = self._own if view is self._older else _seen(machine, view)
        return replace(
            base,
            state=machine.phase,
            floor=machine.candidacy.known,
            ttl_ms_max=round(machine.candidacy.watch.span_s * 1000),
            store_reachable=meter.reachable,
            store_failures=meter.failures,
            store_latency_s=meter.latency_s,
            damaged=meter.damaged,
        )


def _own(tenure: Tenure, me: OwnerRef, *, ttl_s: float) -> LeaseSight:
    holder = holder_of(me.router_id, tenure.token)
    return LeaseSight(record="held", epoch=tenure.epoch, holder=holder, owner=me, seq=tenure.seq, ttl_s=ttl_s)


def _seen(machine: Election, view: LeaseView | None) -> LeaseSight:
    if view is None or view.state is None or view.version is None:
        return LeaseSight()
    owned = view.state is LeaseState.HELD
    claim_epoch, claim_age_s = _released_by_claim(view)
    return LeaseSight(
        record=view.state.value,
        epoch=view.epoch,
        holder=holder_of(view.owner, view.version.token) if owned else "",
        owner=_owner(view) if owned else None,
        seq=view.version.seq,
        ttl_s=view.ttl_ms / 1000,
        released_at=machine.candidacy.watch.released_at,
        acquired_at=view.acquired_ms / 1000 if owned else 0.0,
        release=_release(view),
        claim_epoch=claim_epoch,
        claim_age_s=claim_age_s,
    )


def _owner(view: LeaseView) -> OwnerRef:
    return OwnerRef(view.owner, view.url, control_url=(view.fields or {}).get("control_url", ""))


def _release(view: LeaseView) -> Release | None:
    if view.state is LeaseState.RELEASED:
        return Release(view.epoch, view.owner, view.reason, view.released_ms / 1000)
    if view.state is LeaseState.HELD and view.prior_epoch:
        return Release(view.prior_epoch, view.prior_owner, view.prior_reason, view.prior_released_ms / 1000)
    return None


def _released_by_claim(view: LeaseView) -> tuple[int, float]:
    """The epoch that was released by a claim, and how long before the last renewal; (0, 0.0) for none.

    Both times are the server's own, of one record: they begin a truce and decide no ownership.
    """
    if view.state is LeaseState.RELEASED and view.reason == CLAIM_REASON:
        return view.epoch, 0.0
    if view.state is LeaseState.HELD and view.prior_reason == CLAIM_REASON:
        return view.prior_epoch, max(0, view.renewed_ms - view.acquired_ms) / 1000
    return 0, 0.0
