"""Stage `drains`: settles drains whose work is done or whose time is over (failures.md section 8).

This version takes no order to drain, so it has none to settle. An owner of another version may have taken
some: they go on to the next owner as they came, and are told here, because their engines stay in placement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

log = logging.getLogger("narwhal.monitor")


class DrainsStage:
    """`records()`: engines of which a handoff holds a drain record; empty as a rule."""

    name = "drains"
    needs_control = True

    def __init__(self, records: Callable[[], Sequence[str]]) -> None:
        self._records = records
        self._told: tuple[str, ...] = ()

    async def run(self, now: float) -> None:
        records = tuple(self._records())
        if records != self._told:
            self._told = records
            if records:
                log.warning("drains of %s are not acted on by this version", ", ".join(records))

    async def aclose(self) -> None:
        """Holds nothing."""
