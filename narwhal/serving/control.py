"""The control check of the request path (serving.md section 1.2)."""

from __future__ import annotations

from narwhal.clock import Clock
from narwhal.errors import EngineError, NotOwner, StaleEpoch
from narwhal.ports import ControlGate

HOLD_S = 0.5
"""New requests are held this long while it is open who owns (cluster.md section 5)."""


class ControlCheck:
    """Asks the gate with a fresh clock. Nothing may be awaited between `demand` and the act."""

    __slots__ = ("_clock", "gate")

    def __init__(self, gate: ControlGate, clock: Clock) -> None:
        self.gate = gate
        self._clock = clock

    def demand(self) -> float:
        """Raises NotOwner unless this router owns the fleet at this instant, which is returned."""
        now = self._clock.now()
        if not self.gate.may_admit(now):
            raise self._not_owner(now)
        return now

    def refusal(self) -> NotOwner | None:
        """What `demand` would raise now."""
        now = self._clock.now()
        return None if self.gate.may_admit(now) else self._not_owner(now)

    def overruled(self, error: StaleEpoch) -> NotOwner | EngineError:
        """What an engine's 409 `stale_epoch` means for its request. Ends the ownership if it is true; a claim
        above ours that is not believed is no word of a fence, and counts against the engine."""
        if self.gate.overruled(error.iid, error.epoch):
            return self._not_owner(self._clock.now())
        return error.disbelieved() if error.epoch > self.gate.epoch else error

    def _not_owner(self, now: float) -> NotOwner:
        return NotOwner(f"this router does not serve now: {self.gate.refusal(now)}")

    async def admit(self) -> None:
        """As `demand`, but waits a little where a handover is under way."""
        if not self.gate.may_admit(self._clock.now()):
            await self.gate.decided(HOLD_S)
            self.demand()
