"""Writes the owner's state where a successor finds it: document, log and local file (StatePublisher).

One owner numbers its snapshots (seq) and its log entries (n) here; writes go one at a time, so that the
next n is known. A write that got no answer may still have happened: a snapshot is repeated under a new
seq, an append is read back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from narwhal.clock import Clock
from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.lease_loop import LeaseKeeper
from narwhal.cluster.mirror import Mirror
from narwhal.cluster.saving import SaveBook
from narwhal.cluster.state import OwnState
from narwhal.errors import StoreError, StoreUnreachable
from narwhal.model.handoff import CheckpointRecord, EntryKind, HandoffDocument, LogPosition
from narwhal.model.lease import Appended, Lost, OldEpoch, Published, PublishReply, TopIs
from narwhal.model.store_call import AppendRequest, PublishRequest
from narwhal.policy.handoff_codec import at_age, diff, encode, to_fields
from narwhal.ports import Checkpoint, HandoffStore

WRITE_S = 0.8
BLOCKED_AFTER_S = 1.0
"""A first write that fails so long for a reason that is the store's: a renewal counts instead."""
RETRY_S = 0.1

VOLATILE = frozenset({"at", "counters", "kv_ledger"})
"""Change all the time and travel with snapshots and totals: no delta for them."""
URGENT = frozenset({"roles", "ejected", "inference_sources", "holds", "lifecycle"})
"""A change of these is a snapshot at once."""

Blocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking call beside the loop; runtime hands in `asyncio.to_thread`."""


@dataclass(frozen=True, slots=True)
class PublisherPorts:
    handoffs: HandoffStore
    checkpoint: Checkpoint
    saves: SaveBook
    clock: Clock
    blocking: Blocking


@dataclass(frozen=True, slots=True)
class _Composed:
    """A document and the instant whose truth it is (`Clock.now`)."""

    document: HandoffDocument
    at: float


@dataclass(slots=True)
class _Pen:
    """Numbers of one ownership. `sent` is the last document that the store surely has."""

    token: str = field(repr=False)
    epoch: int
    holder: str
    n: int
    seq: int = 0
    sent: _Composed | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Publisher:
    """StatePublisher of a leased router. Main loop only."""

    def __init__(
        self, ports: PublisherPorts, state: OwnState, *, gate: LeasedGate, keeper: LeaseKeeper, mirror: Mirror
    ) -> None:
        self._ports = ports
        self._state = state
        self._gate = gate
        self._keeper = keeper
        self._mirror = mirror
        self._pen: _Pen | None = None
        self._saving = threading.Lock()
        self._composed_last = self._saved_last = 0
        self.blocked = ""
        """Why the state cannot be published ("" = it can): told in documents, it closes nothing."""

    # --- one ownership ---------------------------------------------------------------------------

    def begin(self, token: str, epoch: int, *, n: int) -> None:
        """A new ownership, its log read up to entry `n`."""
        self._pen = _Pen(token, epoch, self._gate.holder, n)
        self.blocked = ""

    def end(self, token: str) -> None:
        """The ownership is over: its last state becomes the mirror."""
        pen = self._pen
        if pen is not None and pen.token == token:
            self._pen, self.blocked = None, ""
            if pen.sent is not None:
                self._mirror.adopt(self._document(pen), LogPosition(pen.epoch, pen.n))

    async def first_write(self, *, insist: bool = True) -> bool:
        """The write that proves the ownership to a successor; True: the gate may open.

        Without `insist` one that gets no answer is not repeated.

        If the store refuses writes for a reason of its own for a second (a full server), a renewal
        confirmed after this began counts instead. Bounded by the lease's deadline.
        """
        pen, began = self._pen, self._ports.clock.now()
        grip = self._gate.grip
        confirmed = grip.confirmations if grip else 0
        while pen is not None and pen is self._pen and self._gate.alive(pen.token):
            try:
                return isinstance(await self.snapshot(), Published)
            except StoreError as error:
                self.blocked = str(error)
                if not insist:
                    return False
            now, grip = self._ports.clock.now(), self._gate.grip
            if grip is None or now >= grip.valid_until:
                return False
            if now - began >= BLOCKED_AFTER_S and grip.confirmations > confirmed:
                return True
            await self._ports.clock.sleep(RETRY_S)
        return False

    def may_write(self, token: str) -> bool:
        """The ownership under this token is alive, and its lease has not run out."""
        grip = self._gate.grip
        return self._gate.alive(token) and grip is not None and self._ports.clock.now() < grip.valid_until

    @property
    def owning(self) -> bool:
        """An ownership has begun: `document` is the own one."""
        return self._pen is not None

    # --- the port --------------------------------------------------------------------------------

    async def snapshot(self) -> PublishReply | None:
        """Publishes the whole document under a new seq; None while not owner.

        Raises StoreUnreachable, also where the record was lost and waits to be reinstated.
        """
        pen = self._pen
        if pen is None:
            return None
        async with pen.lock:
            if not self._gate.alive(pen.token):
                return None
            pen.seq += 1
            composed = self._composed(pen)
            reply = await self._ports.handoffs.publish(
                PublishRequest(
                    pen.token,
                    pen.epoch,
                    pen.seq,
                    upto=LogPosition(pen.epoch, pen.n),
                    document=encode(composed.document),
                ),
                timeout_s=WRITE_S,
            )
            self._take(pen, reply, composed=composed)
        return reply

    async def checkpoint(self) -> None:
        """Writes the local file: the owner's document, a standby's mirror. Raises OSError.

        Several may be under way, each in a thread that nobody can stop: one that comes late is left out.
        """
        now, pen, sight = self._ports.clock.now(), self._pen, self._gate.sight
        document = self.document()
        applied = LogPosition(pen.epoch, pen.n) if pen else self._mirror.applied
        age_s = 0.0 if pen else self._mirror.document_age_s(now)
        record = CheckpointRecord(
            document=to_fields(document) if document else {},
            seq=pen.seq if pen else 0,
            applied_n=applied.n,
            epoch_floor=max(sight.floor, self._gate.epoch),
            ttl_ms_max=sight.ttl_ms_max,
            boot_id=self._state.identity.boot_id if age_s is not None else "",
            boottime_s=now - (age_s or 0.0),
            totals=self._state.runs(),
        )
        self._composed_last += 1
        number = self._composed_last
        try:
            await self._ports.blocking(lambda: self._save(record, number))
        except OSError as error:
            # Not the error's own text: a temporary file's name is another each time.
            self._ports.saves.failed(error.strerror or type(error).__name__, told=self._pen is None)
            raise
        self._ports.saves.written(told=self._pen is None)

    def _save(self, record: CheckpointRecord, number: int) -> None:
        """In a thread. An older document never replaces a newer one."""
        with self._saving:
            if number > self._saved_last:
                self._ports.checkpoint.write(record)
                self._saved_last = number

    # --- between snapshots -----------------------------------------------------------------------

    async def publish_changes(self) -> bool:
        """Sends what changed since the last write: a delta, or a snapshot now. False: nothing did.

        Raises StoreUnreachable.
        """
        pen = self._pen
        if pen is None or pen.sent is None:
            return False
        changed = self._changed(pen)
        if not changed:
            return False
        if URGENT.isdisjoint(changed):
            await self._append(pen)
        else:
            await self.snapshot()
        return True

    def _changed(self, pen: _Pen) -> dict[str, Any]:
        if pen.sent is None:
            return {}
        now = self._composed(pen)
        changed = diff(at_age(pen.sent.document, now.at - pen.sent.at), now.document)
        return {name: value for name, value in changed.items() if name not in VOLATILE}

    async def _append(self, pen: _Pen) -> None:
        async with pen.lock:
            composed, changed = self._composed(pen), self._changed(pen)
            if not changed or not self._gate.alive(pen.token):
                return
            position = LogPosition(pen.epoch, pen.n + 1)
            request = AppendRequest(pen.token, position, EntryKind.DELTA, changed)
            reply = await self._ports.handoffs.append(request, timeout_s=WRITE_S)
            if isinstance(reply, Appended):
                pen.n, pen.sent = position.n, composed
                return
            if isinstance(reply, Lost):
                self._lost(pen, reply)
            repeated = isinstance(reply, TopIs) and await self._is_there(position, changed, top=reply)
            if repeated:
                pen.sent = composed
        if isinstance(reply, TopIs):
            self._above(pen, LogPosition.parse(reply.id))
            if not repeated:
                await self.snapshot()

    async def _is_there(self, position: LogPosition, body: dict[str, Any], *, top: TopIs) -> bool:
        """An append that got no answer had happened: the entry at our position says what we say."""
        if LogPosition.parse(top.id).epoch != position.epoch:
            return False
        before = LogPosition(position.epoch, position.n - 1)
        entries = await self._ports.handoffs.read_log(before, through=position, timeout_s=WRITE_S)
        return any(entry.position == position and dict(entry.body) == body for entry in entries)

    # --- replies ---------------------------------------------------------------------------------

    def document(self) -> HandoffDocument | None:
        """The owner's state now, a standby's mirror; None while there is neither."""
        return self._document(self._pen) if self._pen else self._mirror.document

    def _document(self, pen: _Pen) -> HandoffDocument:
        return self._state.compose(epoch=pen.epoch, holder=pen.holder)

    def _composed(self, pen: _Pen) -> _Composed:
        return _Composed(self._document(pen), self._ports.clock.now())

    def _take(self, pen: _Pen, reply: PublishReply, *, composed: _Composed) -> None:
        match reply:
            case Published(entry_id):
                self._above(pen, LogPosition.parse(entry_id))
                pen.sent, self.blocked = composed, ""
            case OldEpoch(epoch):
                self._above(pen, LogPosition(epoch, 0))
            case Lost():
                self._lost(pen, reply)

    def _above(self, pen: _Pen, top: LogPosition) -> None:
        """Goes on above an id of our epoch; one of a higher epoch ends this token."""
        if top.epoch > pen.epoch:
            why = f"the stored handoff has epoch {top.epoch}"
            self._keeper.supersede(pen.token, top.epoch, why=why)
        elif top.epoch == pen.epoch:
            pen.n = max(pen.n, top.n)

    def _lost(self, pen: _Pen, reply: Lost) -> None:
        """Final, unless the record was lost or went back in time: that is the next renewal's to mend."""
        if reply.epoch < pen.epoch:
            raise StoreUnreachable("the lease record was lost: a renewal reinstates it")
        self._keeper.fence(pen.token, f"a write was refused: {reply.owner or reply.state} owns")
