"""The control gate as the request path sees it: ownership of the fleet, sound monitoring, no wave."""

from __future__ import annotations

from narwhal.policy.monitoring import Monitoring
from narwhal.policy.wave import Wave
from narwhal.ports import ControlGate


class MonitoredGate:
    """A ControlGate that admits only while the control gate does, monitoring is not degraded and the fleet is
    not held as a whole."""

    __slots__ = ("_control", "_monitoring", "_wave")

    def __init__(self, control: ControlGate, monitoring: Monitoring, *, wave: Wave) -> None:
        self._control = control
        self._monitoring = monitoring
        self._wave = wave

    @property
    def epoch(self) -> int:
        return self._control.epoch

    @property
    def holder(self) -> str:
        return self._control.holder

    def may_admit(self, now: float) -> bool:
        return not self._wave.reason and not self._monitoring.degraded and self._control.may_admit(now)

    def refusal(self, now: float) -> str:
        return self._control.refusal(now) or self._monitoring.reason or self._wave.reason

    def overruled(self, iid: str, epoch: int) -> bool:
        return self._control.overruled(iid, epoch)

    async def decided(self, timeout_s: float) -> None:
        await self._control.decided(timeout_s)
