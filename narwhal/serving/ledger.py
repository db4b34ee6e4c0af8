"""The requests this router has in hand: one entry each, from arrival to the end of the response.

An entry is a context manager that is opened before anything can raise. However its block is left, it gives
back every reservation, counts exactly one outcome and hands the journal row to the recorder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Self

from narwhal.clock import Clock
from narwhal.errors import EngineError, NarwhalError
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass
from narwhal.model.placement import Reservation
from narwhal.model.request import InferenceRequest, Outcome, RequestRow
from narwhal.policy.fleet import Fleet
from narwhal.policy.outcome import outcome_of
from narwhal.policy.totals import Totals
from narwhal.ports import Inbound, Recorder
from narwhal.serving.decodes import OpenDecodes

UNCLASSED = "none"
"""The class of a failed leg that is held against no engine."""


class Ledger:
    """Open entries of one router."""

    def __init__(self, *, fleet: Fleet, totals: Totals, recorder: Recorder, clock: Clock) -> None:
        self.fleet = fleet
        self.totals = totals
        self.recorder = recorder
        self.clock = clock
        self.decodes = OpenDecodes(clock)
        self.inflight = 0
        """Entries open now."""
        self.attempts = 0
        """Prefill+decode attempts begun since the start."""
        self.retries = 0
        """Those of them that were not a request's first."""
        self.freed: Callable[[], None] | None = None
        """Called after reservations have ended, where legs may wait for that."""

    def open(self, inbound: Inbound, epoch: int) -> Entry:
        """Counts the request. Use the entry as a context manager at once."""
        self.inflight += 1
        return Entry(self, inbound, epoch=epoch)


class Entry:
    """One request in hand. `row` is its journal row; `began` is on Clock.now."""

    __slots__ = (
        "_answered", "_at_end", "_held", "_inbound", "_ledger", "_missed_slo", "_read", "began", "decodes",
        "dispatched", "row", "sent_at",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, inbound: Inbound, *, epoch: int) -> None:
        self._ledger = ledger
        self._inbound = inbound
        self._held: list[Reservation] = []
        self._missed_slo = False
        self._answered = False
        self._read = False
        self._at_end: Callable[[], None] | None = None
        self.decodes = ledger.decodes
        self.began = ledger.clock.now()
        self.dispatched = False
        """A leg has been sent: the request runs to its end even if control is lost (I8)."""
        self.sent_at = inf
        """When the prefill leg under way went to its engine."""
        self.row = RequestRow(
            rid=inbound.rid,
            client_rid=inbound.client_rid,
            arrived=inbound.arrived_wall,
            epoch=epoch,
        )

    def decoded(self, request: InferenceRequest) -> None:
        """The body has been read: from here on the end of the client ends the task that serves it."""
        self._read = True
        self._inbound.stream.watch(_ender_of_this_task())

    def at_end(self, give_back: Callable[[], None]) -> None:
        """`give_back` is called once, when the request has ended: its place in this router."""
        self._at_end = give_back

    def hold(self, reservation: Reservation) -> None:
        """Takes over a reservation; a missed target counts once a request."""
        self._held.append(reservation)
        if reservation.violates_slo and not self._missed_slo:
            self._missed_slo = True
            self._ledger.totals.missed_slo()

    def hand_off(self, prefill: Reservation, tokens: int, *, since: float) -> None:
        """The prefill leg has ended on its engine, which may hold its KV from `since` on."""
        self._held.remove(prefill)
        ledger = self._ledger
        ledger.fleet.accounts.hand_off(prefill, tokens, since=since)
        if ledger.freed is not None:
            ledger.freed()

    def attempt(self) -> None:
        """Counts the start of one prefill+decode attempt; what an earlier one left in the row is no more."""
        row = self.row
        row.attempts += 1
        self._ledger.attempts += 1
        if row.attempts > 1:
            self._ledger.retries += 1
            row.decode_iid = row.decode_rid = row.ttft_s = row.tpot_s = row.kv_wait_s = None
            row.crossed, row.output_len = False, 0

    def engines_of_attempt(self) -> frozenset[str]:
        """Whom the next attempt avoids: the engine whose leg failed, and the producer of a failed decode."""
        return frozenset(iid for iid in (self.row.prefill_iid, self.row.decode_iid) if iid is not None)

    def answered(self) -> None:
        """The end of the whole answer is about to leave: it counts as served from here on, whatever follows.

        Before the bytes, so that no client holds an answer that a router killed now has not counted (I4).
        """
        if not self._answered:
            self._answered = True
            self._ledger.totals.finished(Outcome.SERVED)

    def leg_failed(self, leg: Leg, error: NarwhalError, *, failure: FailureClass | None = None) -> None:
        """Notes a failed leg, by the class in which it counts, and gives back what the attempt held."""
        iid = (self.row.prefill_iid if leg is Leg.PREFILL else self.row.decode_iid) or ""
        told = {"leg": leg.value, "iid": iid, "class": failure or UNCLASSED}
        self.row.attempt_failures.append({**told, "kind": type(error).__name__, "error": str(error)})
        self._release_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ledger, row = self._ledger, self.row
        self._release_all()
        ledger.inflight -= 1
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()
        outcome = self._outcome(error)
        row.duration_s = ledger.clock.now() - self.began
        row.terminal = outcome
        if error is not None:
            row.reason = type(error).__name__
            row.error = _told(error)
        if not self._answered:
            ledger.totals.finished(outcome)
        ledger.recorder.request(row, outcome)

    def _outcome(self, error: BaseException | None) -> Outcome:
        if self._answered:
            return Outcome.SERVED
        return outcome_of(error, client_left=self._client_left(error), dispatched=self.dispatched)

    def _client_left(self, error: BaseException | None) -> bool:
        """Cancellation while the body was read is the client's, later only if its stream says so."""
        if not isinstance(error, asyncio.CancelledError):
            return False
        return self._inbound.stream.gone or not self._read

    def _release_all(self) -> None:
        now = self._ledger.clock.now()
        for reservation in self._held:
            self._ledger.fleet.release(reservation, now)
        self._held.clear()
        if self._ledger.freed is not None:
            self._ledger.freed()


def _ender_of_this_task() -> Callable[[], None]:
    task = asyncio.current_task()

    def end() -> None:
        if task is not None:
            task.cancel("the client left")

    return end


def _told(error: BaseException) -> str:
    if isinstance(error, EngineError) and error.iid:
        return f"{error.leg} on {error.iid}: {error}"
    return str(error)
