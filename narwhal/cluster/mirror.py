"""The standby's copy of the owner's state: the stored document plus the log, kept in memory.

The log is read from a cursor; a snapshot entry means "load the document again", a delta is applied to what
is held. A gap, a trimmed stream or a new incarnation means the document is read anew. What is held is
replaced only by something newer, by (epoch, n), and never merged: a store that was emptied or went back in
time does not make a standby forget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from narwhal.clock import Clock
from narwhal.cluster.trouble import Troubles
from narwhal.errors import SavedStateError, StoreError
from narwhal.model.handoff import LOG_START, EntryKind, HandoffDocument, LogEntry, LogPosition
from narwhal.model.store_call import FeedBatch
from narwhal.policy.handoff_codec import apply
from narwhal.policy.takeover import SavedState, from_store
from narwhal.ports import HandoffStore, LogFeed

BLOCK_S = 0.5
LOAD_S = 0.8
PAUSE_S = 0.25
"""After a read without an answer."""


class Mirror:
    """Reads for ever in `run`. Attributes are for reading only.

    `on_entry` is called for each new log entry, before the document that it announces is loaded.
    """

    def __init__(
        self,
        feed: LogFeed,
        handoffs: HandoffStore,
        *,
        clock: Clock,
        on_entry: Callable[[LogEntry], None] = lambda entry: None,
    ) -> None:
        self._feed = feed
        self._handoffs = handoffs
        self._clock = clock
        self.on_entry = on_entry
        self._cursor = LOG_START
        self._synced = False
        self.document: HandoffDocument | None = None
        self.applied = LOG_START
        """Log position that the document contains."""
        self.read_at: float | None = None
        """When log and document were last read to their end, also if there was nothing."""
        self.followed = False
        """We stood by a living owner, or were one: what is held is no older start's state."""
        self._source = "mirror"
        self._document_at: float | None = None
        self._unusable = LOG_START
        """A delta for whose sake the document was read again: not twice for the same one."""
        self.schema_version = 0
        """That of the stored document as last seen, also of one that cannot be read; 0: none was seen."""
        self.problem = ""
        """Why the stored document cannot be used, "" if it can."""

    def age_s(self, now: float) -> float | None:
        """Seconds since the last complete read; None before the first."""
        return None if self.read_at is None else max(0.0, now - self.read_at)

    def document_age_s(self, now: float) -> float | None:
        """Seconds since the document was published, as observed here; None where nobody knows."""
        return None if self._document_at is None else max(0.0, now - self._document_at)

    def saved(self, now: float) -> SavedState | None:
        if self.document is None:
            return None
        return SavedState(self._source, self.document, self.applied, self.document_age_s(now))

    def adopt(self, document: HandoffDocument, applied: LogPosition) -> None:
        """A fenced owner's own last state is its mirror."""
        now = self._clock.now()
        self._hold(SavedState("mirror", document, max(applied, self.applied), 0.0), now)
        self.read_at, self.followed, self._synced = now, True, False

    def preload(self, state: SavedState) -> None:
        """`--resume` while the store does not answer yet: the checkpoint is all there is."""
        if self.document is None:
            self._hold(state, self._clock.now())

    def _hold(self, state: SavedState, now: float) -> None:
        self.document, self.applied, self._source = state.document, state.upto, state.source
        self._document_at = None if state.age_s is None else now - state.age_s

    async def run(self) -> None:
        """Follows the log until cancelled; a store that does not answer is asked again."""
        self._synced = False
        troubles = Troubles()
        while True:
            try:
                await self.step()
                troubles.over("mirror")
            except StoreError as error:
                troubles.met("mirror", error)
                self._synced = False
                await self._clock.sleep(PAUSE_S)

    async def step(self) -> None:
        """One read of the feed. Raises StoreError."""
        if not self._synced:
            await self._resync()
            return
        batch = await self._feed.read(self._cursor, block_s=BLOCK_S)
        if batch.gap:
            await self._resync()
        else:
            await self._take(batch)

    async def _resync(self) -> None:
        """Reads the document, then the log from what it contains; a gap that is left cannot be healed."""
        stored_upto = await self._load()
        self._cursor = stored_upto
        batch = await self._feed.read(stored_upto, block_s=0.0)
        await self._take(batch)
        if batch.gap and not batch.entries:
            self._cursor = max(self._cursor, batch.top)
        self._synced = True

    async def _load(self, *, announced: bool = False) -> LogPosition:
        """Takes the stored document if it is not older than what is held; the log position it tells.

        `announced`: its entry came a moment ago, so where nobody else knows its age it is new.
        """
        stored = await self._handoffs.load(timeout_s=LOAD_S)
        self.problem = ""
        if stored is None:
            return LOG_START
        self.schema_version = stored.schema_version
        try:
            state = replace(from_store(stored), source="mirror")
        except SavedStateError as error:
            self.problem = str(error)
            return stored.upto
        held = self.saved(self._clock.now())
        if held is not None and state.order == held.order and state.age_s is None:
            # A restarted server cannot tell the age of what it kept, we can.
            state = replace(state, age_s=held.age_s)
        elif announced and state.age_s is None:
            state = replace(state, age_s=0.0)
        if held is None or state.order >= held.order:
            self._hold(state, self._clock.now())
        return stored.upto

    async def _take(self, batch: FeedBatch) -> None:
        fresh = [entry for entry in batch.entries if self._cursor < entry.position]
        for entry in fresh:
            self._cursor = entry.position
            self.on_entry(entry)
        if any(entry.kind is EntryKind.SNAPSHOT for entry in fresh):
            live, self._synced = self._synced, False
            await self._load(announced=live)
            self._synced = True
        for entry in fresh:
            if entry.kind is EntryKind.DELTA:
                self._apply(entry)
        if batch.top <= self._cursor or not batch.entries:
            self.read_at = self._clock.now()

    def _apply(self, entry: LogEntry) -> None:
        if self.document is None or entry.position <= self.applied:
            return
        try:
            self.document = apply(self.document, entry.body)
        except SavedStateError as error:
            self.problem = f"log entry {entry.position}: {error}"
            if self._unusable < entry.position:
                self._unusable, self._synced = entry.position, False
        self.applied = max(self.applied, entry.position)
