"""The main loop's sign of life: the keeper renews only while it beats."""

from __future__ import annotations

from narwhal.clock import Clock

BEAT_S = 0.25


class Pulse:
    """`at` (on `Clock.now`) is the last beat; read by the keeper's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = clock.now()

    async def run(self) -> None:
        while True:
            self.at = self._clock.now()
            await self._clock.sleep(BEAT_S)
