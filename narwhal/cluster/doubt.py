"""Whether the owner of a held lease is there at all: asked when a request comes to a standby.

A balancer sends one here when the owner's port is closed. Of that end the lease tells a few round trips
later, so the request waits for it, as for any handover, where the owner gives no answer.
"""

from __future__ import annotations

import asyncio
from math import inf

from narwhal.clock import Clock
from narwhal.model.control import OwnerRef
from narwhal.ports import Peers

LOOK_S = 0.25
FRESH_S = 0.05
"""One look answers for all requests that come so soon after it."""
REST_S = 1.0
"""The same, once the doubt has lasted too long to hold anybody up."""


class Doubt:
    """Main loop only. `peers`: None where no other router is asked: the owner is believed to be there.

    `lasts_s`: how long after the first look in vain its requests are held up, once an epoch.
    """

    def __init__(self, peers: Peers | None, clock: Clock, *, lasts_s: float) -> None:
        self._peers = peers
        self._clock = clock
        self._lasts_s = lasts_s
        self._turn = asyncio.Lock()
        self._epoch = 0
        self._asked_at = -inf
        self._silent_at: float | None = None
        """Of the first look at the owner of `_epoch` that got no answer, None: the last one was answered."""

    def of(self, epoch: int, now: float) -> bool:
        """Nobody knows whether the owner of that epoch is there."""
        return self._epoch == epoch and self._silent_at is not None and now < self._silent_at + self._lasts_s

    async def look(self, owner: OwnerRef, epoch: int) -> None:
        """Asks the owner for its readiness, unless that was done just now."""
        if self._peers is None:
            return
        async with self._turn:
            now = self._clock.now()
            if self._epoch != epoch:
                self._epoch, self._asked_at, self._silent_at = epoch, -inf, None
            lasting = self._silent_at is not None and not self.of(epoch, now)
            if now < self._asked_at + (REST_S if lasting else FRESH_S):
                return
            told = await self._peers.ready(owner.url, timeout_s=LOOK_S)
            self._asked_at = self._clock.now()
            if told is not None:
                self._silent_at = None
            elif self._silent_at is None:
                self._silent_at = self._asked_at
