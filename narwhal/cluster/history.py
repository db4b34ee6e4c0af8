"""The last changes of ownership that this router saw, for documents and the journal."""

from __future__ import annotations

from collections import deque

from narwhal.clock import Clock
from narwhal.model.cluster_view import OwnershipChange
from narwhal.model.leadership import LeaseSight
from narwhal.ports import Recorder

KEPT = 16


class History:
    """Bounded; newest last. Main loop only."""

    def __init__(self, recorder: Recorder, *, router_id: str, clock: Clock) -> None:
        self._recorder = recorder
        self._router_id = router_id
        self._clock = clock
        self._changes: deque[OwnershipChange] = deque(maxlen=KEPT)
        self._seen = LeaseSight()

    @property
    def changes(self) -> tuple[OwnershipChange, ...]:
        return tuple(self._changes)

    def note(self, kind: str, epoch: int, *, router_id: str = "", reason: str = "") -> None:
        """One change of our own (or of `router_id`), told to the journal too."""
        who = router_id or self._router_id
        self._changes.append(OwnershipChange(kind, epoch, who, self._clock.wall(), reason))
        fields = {"change": kind, "epoch": epoch, "router_id": who, "reason": reason}
        self._recorder.event("ownership", fields)

    def saw(self, sight: LeaseSight) -> bool:
        """The lease as peeked: another router's acquire is a change too. True: that router is alive, for
        its seq has moved while we looked."""
        before, self._seen = self._seen, sight
        other = sight.owner.router_id if sight.owner else ""
        if sight.record != "held" or other in ("", self._router_id):
            return False
        if (before.record, before.epoch) != (sight.record, sight.epoch):
            self.note("acquired", sight.epoch, router_id=other)
        return before.holder == sight.holder and before.seq < sight.seq
