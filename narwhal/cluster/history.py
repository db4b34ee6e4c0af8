"""The last changes of ownership that this router saw, for documents and the journal."""

from __future__ import annotations

from collections import deque

from narwhal.clock import Clock
from narwhal.model.cluster_view import OwnershipChange
from narwhal.model.leadership import LeaseSight, Release
from narwhal.ports import Recorder

KEPT = 16
ENDINGS = frozenset({"released", "fenced"})


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

    def note(self, kind: str, epoch: int, *, reason: str = "") -> None:
        """A change of our own, now; told to the journal too."""
        self._add(OwnershipChange(kind, epoch, self._router_id, self._clock.wall(), reason))

    def saw(self, sight: LeaseSight) -> bool:
        """The lease as peeked: what others did is a change too, at the time that the record tells. True: the
        other router that holds it is alive, for its seq has moved while we looked."""
        before, self._seen = self._seen, sight
        if sight.release is not None and sight.release != before.release:
            self._learn_release(sight.release)
        other = sight.owner.router_id if sight.owner else ""
        if sight.record != "held" or other in ("", self._router_id):
            return False
        if (before.record, before.epoch) != (sight.record, sight.epoch):
            at = sight.acquired_at or self._clock.wall()
            self._add(OwnershipChange("acquired", sight.epoch, other, at))
        return before.holder == sight.holder and before.seq < sight.seq

    def _learn_release(self, release: Release) -> None:
        """Not what is known: our own, or one that a released record told before its successor's did."""
        ended = {change.epoch for change in self._changes if change.kind in ENDINGS}
        if release.epoch not in ended and release.router_id:
            at = release.at or self._clock.wall()
            self._add(OwnershipChange("released", release.epoch, release.router_id, at, release.reason))

    def _add(self, change: OwnershipChange) -> None:
        self._changes.append(change)
        fields = {"change": change.kind, "epoch": change.epoch, "router_id": change.router_id}
        self._recorder.event("ownership", {**fields, "reason": change.reason, "happened_at": change.at})
