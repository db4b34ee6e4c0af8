"""Carries this run's counters to the shared totals, and learns those of all others (I4).

Absolute values, merged field by field to the greater: a repeated, late or lost flush changes nothing.
Every router flushes its own run, also a fenced one whose last streams still end. A router with nothing new
asks once a second, so that a successor knows all runs even if the store then loses them.
"""

from __future__ import annotations

import asyncio
import contextlib

from narwhal.clock import Clock
from narwhal.cluster.trouble import Troubles
from narwhal.errors import StoreError
from narwhal.model.request import Counters
from narwhal.policy.totals import Totals, greater, total_of
from narwhal.ports import HandoffStore

FLUSH_S = 0.05
LEARN_S = 1.0
RETRY_S = 0.25
TIMEOUT_S = 0.8


class TotalsFlusher:
    """Runs for ever in `run`. Main loop only."""

    def __init__(self, handoffs: HandoffStore, totals: Totals, *, clock: Clock) -> None:
        self._handoffs = handoffs
        self._totals = totals
        self._clock = clock
        self._counted = asyncio.Event()
        totals.watchers.append(self._counted.set)
        self.failures = 0
        self.confirmed = Counters()
        """The sum over all runs as the store told it; flushes that cross may be answered in any order."""

    async def run(self) -> None:
        troubles = Troubles()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEARN_S):
                    await self._counted.wait()
            await self._clock.sleep(FLUSH_S)
            try:
                await self.flush()
                troubles.over("totals")
            except StoreError as error:
                troubles.met("totals", error)
                self.failures += 1
                self._counted.set()
                await self._clock.sleep(RETRY_S)

    async def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """One flush, whether or not anything changed. Raises StoreError."""
        self._counted.clear()
        runs = await self._handoffs.flush_totals(self._totals.vector(), timeout_s=timeout_s)
        self._totals.merge(runs)
        self.confirmed = greater(self.confirmed, total_of(runs.values()))
