"""Stage `rollover`: ends one interval of what the open streams show, and begins the next."""

from __future__ import annotations

import asyncio

from narwhal.policy.pacing import Pacing
from narwhal.ports import DecodeWatch

LATE_SHARE = 0.5
LEAST_LATE_S = 0.25


class RolloverStage:
    """Looks at the streams in pieces, with the loop's other work between them.

    A pass that comes late says that our loop was held up, and what the engines sent meanwhile may still be
    unread: it ends no interval, the next one does for both (failures.md section 9: our lag is no evidence).
    """

    name = "rollover"
    needs_control = True

    def __init__(self, watch: DecodeWatch, pacing: Pacing, *, interval_s: float) -> None:
        """`interval_s`: seconds between monitor passes."""
        self._watch = watch
        self._pacing = pacing
        self._latest_s = interval_s + max(LATE_SHARE * interval_s, LEAST_LATE_S)
        self._last_at: float | None = None

    async def run(self, now: float) -> None:
        last_at, self._last_at = self._last_at, now
        if last_at is not None and now - last_at > self._latest_s:
            return
        for _ in self._watch.look():
            await asyncio.sleep(0)
        self._pacing.roll(self._watch.take(), now)

    async def aclose(self) -> None:
        """Holds nothing."""
