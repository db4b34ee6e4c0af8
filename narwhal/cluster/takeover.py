"""From a granted lease to an open gate (cluster.md sections 5 and 6).

Acquire -> read the log from the plan's `upto` to its end -> restore -> first fenced write -> open the gate.
Nothing here may take longer than the lease: every wait is bounded, and the gate refuses to open late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from narwhal.clock import Clock
from narwhal.cluster.flush import TotalsFlusher
from narwhal.cluster.mirror import Mirror
from narwhal.cluster.publisher import RETRY_S, Publisher
from narwhal.cluster.state import OwnState
from narwhal.errors import SavedStateError, StoreDamaged, StoreError
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


@dataclass(frozen=True, slots=True)
class Seen:
    """`plan` and `top`: with the log's deltas, and its end. `whole`: nothing of both is missing because the
    store gave no answer."""

    plan: OpeningPlan
    top: LogPosition
    totals_known: bool
    whole: bool


class Reading:
    """One reading of the store, in `READ_S` for all that is asked. `silent`: something was not answered."""

    def __init__(self, clock: Clock) -> None:
        self.silent = False
        self._clock = clock
        self._until = clock.now() + READ_S

    async def ask(self, read: Callable[[float], Awaitable[R]]) -> R | None:
        """What the store says; None if it does not, or says what cannot be read."""
        left = self._until - self._clock.now()
        try:
            if left > 0:
                return await read(left)
        except (SavedStateError, StoreDamaged):
            return None  # it will not be read better another time
        except StoreError:
            pass
        self.silent = True
        return None


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

    async def prepare(self, granted: Granted, saved: Saved) -> bool:
        """Restores and makes the first fenced write; True: the gate may open.

        A store that cannot be read is asked again before the write, which goes over the same connection and
        would not come through either: what the store has may be newer than the mirror. Not for ever: old
        state is better than no owner.
        """
        self.introduce()
        for look in count(1):
            seen = await self._look(saved)
            if seen.whole or look >= LOOKS:
                self._restore(granted, seen)
                if await self._publisher.first_write(insist=seen.whole):
                    return True
            if seen.whole or not self._publisher.may_write(granted.token):
                return False
            await self._clock.sleep(RETRY_S)
        raise AssertionError("looks are counted without end")

    async def _look(self, saved: Saved) -> Seen:
        """What is at hand now, with what the store says of it."""
        reading = Reading(self._clock)
        stored = await reading.ask(self._stored)
        plan = self._plan(stored, saved)
        followed = await reading.ask(lambda left: self._follow(plan, left))
        plan, top = followed or (plan, plan.upto)
        whole = not reading.silent
        known = await reading.ask(self._learn)  # a write: a full server refuses it and has told all the same
        return Seen(plan, top, totals_known=known is not None, whole=whole)

    def _restore(self, granted: Granted, seen: Seen) -> None:
        plan, top = seen.plan, seen.top
        self.notes = self._state.restore(plan, totals_known=seen.totals_known)
        self.plan = plan
        if plan.cautious:
            # What was answered before the engines owed a check is not remembered.
            self.introduce()
        self._publisher.begin(granted.token, granted.epoch, n=top.n if top.epoch == granted.epoch else 1)

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
