"""From a granted lease to an open gate (cluster.md sections 5 and 6).

Acquire -> read the log from the plan's `upto` to its end -> restore -> first fenced write -> open the gate.
Nothing here may take longer than the lease: every wait is bounded, and the gate refuses to open late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from narwhal.clock import Clock
from narwhal.cluster.flush import TotalsFlusher
from narwhal.cluster.mirror import Mirror
from narwhal.cluster.publisher import Publisher
from narwhal.cluster.state import OwnState
from narwhal.errors import SavedStateError, StoreError
from narwhal.model.handoff import CheckpointRecord, EntryKind, LogEntry, LogPosition
from narwhal.policy.handoff_codec import apply
from narwhal.policy.intents import Granted
from narwhal.policy.takeover import (
    OpeningPlan,
    PlanRules,
    SavedState,
    from_checkpoint,
    from_store,
    opening_plan,
)
from narwhal.ports import HandoffStore

R = TypeVar("R")
READ_S = 0.5
"""Most that one reading of the store may take before the opening."""
LOOKS = 3
"""Readings of a silent store before the first write is tried all the same."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What is at hand besides the store. `checkpoint` is the file as read at start."""

    mirror: Mirror
    checkpoint: CheckpointRecord | None
    max_age_s: float
    resume: bool


class Takeover:
    """Prepares one ownership. Main loop only."""

    def __init__(
        self,
        handoffs: HandoffStore,
        state: OwnState,
        *,
        flusher: TotalsFlusher,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._handoffs = handoffs
        self._state = state
        self._flusher = flusher
        self._publisher = publisher
        self._clock = clock
        self.introduce: Callable[[], None] = lambda: None
        """Asks every engine for its health, under the new epoch; runtime hands it in."""
        self.plan: OpeningPlan | None = None
        """The last opening plan; `notes` are its sentences, for the journal."""
        self.notes: tuple[str, ...] = ()
        self._unread = False

    async def prepare(self, granted: Granted, saved: Saved) -> bool:
        """Restores and makes the first fenced write; True: the gate may open.

        A store that cannot be read is asked again before the write, which goes over the same connection and
        would not come through either: what the store has may be newer than the mirror. Not for ever: old
        state is better than no owner.
        """
        looks = 0
        while True:
            whole, looks = await self._restore(granted, saved), looks + 1
            if not whole and looks < LOOKS and self._publisher.may_write:
                continue
            if await self._publisher.first_write(insist=whole):
                return True
            if whole or not self._publisher.may_write:
                return False

    async def _restore(self, granted: Granted, saved: Saved) -> bool:
        """From the newest of what is at hand. False: the store did not tell all that it has."""
        self.introduce()
        self._unread = False
        until = self._clock.now() + READ_S
        stored = await self._bounded(self._stored, until=until)
        plan = self._plan(stored, saved)
        plan, top = await self._bounded(lambda left: self._follow(plan, left), until=until) or (
            plan,
            plan.upto,
        )
        known = await self._bounded(self._learn, until=until)
        self.notes = self._state.restore(plan, totals_known=known is not None)
        self.plan = plan
        if plan.cautious:
            # What was answered before the engines owed a check is not remembered.
            self.introduce()
        self._publisher.begin(granted.token, granted.epoch, n=top.n if top.epoch == granted.epoch else 1)
        return not self._unread

    def _plan(self, stored: SavedState | None, saved: Saved) -> OpeningPlan:
        now, identity = self._clock.now(), self._state.identity
        candidates = (saved.mirror.saved(now), stored, self._from_file(saved.checkpoint, now))
        rules = PlanRules(
            engines=frozenset(identity.engines),
            max_age_s=saved.max_age_s,
            keep_roles=saved.resume or saved.mirror.followed,
            followed=saved.mirror.followed,
        )
        return opening_plan([one for one in candidates if one is not None], rules)

    def _from_file(self, record: CheckpointRecord | None, now: float) -> SavedState | None:
        if record is None or not record.document:
            return None
        try:
            return from_checkpoint(record, boot_id=self._state.identity.boot_id, now=now)
        except SavedStateError:
            return None

    # --- the store, within the time that is left -------------------------------------------------

    async def _bounded(self, read: Callable[[float], Awaitable[R]], *, until: float) -> R | None:
        """What the store says before `until`; None if it does not, or says what cannot be read."""
        left = until - self._clock.now()
        try:
            if left > 0:
                return await read(left)
        except SavedStateError:
            return None  # it will not be read better another time
        except StoreError:
            pass
        self._unread = True
        return None

    async def _stored(self, left: float) -> SavedState | None:
        stored = await self._handoffs.load(timeout_s=left)
        return from_store(stored) if stored else None

    async def _learn(self, left: float) -> bool:
        await self._flusher.flush(left)
        return True

    async def _follow(self, plan: OpeningPlan, left: float) -> tuple[OpeningPlan, LogPosition]:
        """The plan's document with the log's deltas up to its end, and that end."""
        until, top, state = self._clock.now() + left, plan.upto, plan.state
        notes = list(plan.notes)
        while left > 0:
            entries = await self._handoffs.read_log(top, timeout_s=left)
            if not entries:
                break
            for entry in entries:
                top = entry.position
                try:
                    state = _with_entry(state, entry)
                except SavedStateError as error:
                    notes.append(f"log entry {top} is left: {error}")
            left = until - self._clock.now()
        return replace(plan, state=state, notes=tuple(notes)), top


def _with_entry(state: SavedState | None, entry: LogEntry) -> SavedState | None:
    """The state after one more entry. Raises SavedStateError for a delta that does not fit."""
    if state is None or entry.kind is not EntryKind.DELTA:
        return state
    return replace(state, document=apply(state.document, entry.body), upto=entry.position)
