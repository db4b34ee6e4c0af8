"""Stage `drains`: settles drains whose work is done or whose time is over (failures.md section 8)."""

from __future__ import annotations

from typing import Protocol


class Drained(Protocol):
    """The engines that are drained. Implemented by `monitor.maintenance`."""

    def look(self, now: float) -> None:
        """Tells of deadlines, asks engines beside the pass, raises what such a question ended with."""

    async def aclose(self) -> None: ...


class DrainsStage:
    """Only the owner looks: the engines of another one's drains are its matter."""

    name = "drains"
    needs_control = True

    def __init__(self, drained: Drained) -> None:
        self._drained = drained

    async def run(self, now: float) -> None:
        self._drained.look(now)

    async def aclose(self) -> None:
        await self._drained.aclose()
