"""What a request must pass before it is placed: control, the in-flight limit, engines at all."""

from __future__ import annotations

from narwhal.clock import Clock
from narwhal.errors import NoEngine, NoSchedulableEngine, Overloaded, RequestExpired
from narwhal.model.engine import Leg
from narwhal.model.request import Deadline, InferenceRequest
from narwhal.policy.admission import Admission
from narwhal.policy.fleet import Fleet
from narwhal.serving.control import ControlCheck


class Doors:
    """The checks before placement (serving.md sections 1.1 and 1.2)."""

    def __init__(
        self,
        admission: Admission,
        *,
        control: ControlCheck,
        fleet: Fleet,
        clock: Clock,
        request_timeout_s: float,
    ) -> None:
        self._admission = admission
        self._timeout_s = request_timeout_s
        self._control = control
        self._fleet = fleet
        self._clock = clock

    @property
    def epoch(self) -> int:
        return self._control.epoch

    async def admit(self, inflight: int) -> None:
        """`inflight` includes the request itself. Raises NotOwner or Overloaded."""
        await self._control.admit()
        if not self._admission.admits(inflight):
            raise Overloaded(f"{self._admission.limit} requests are in flight: the limit")

    def deadline(self, request: InferenceRequest) -> Deadline:
        """The one deadline of the request, from its arrival."""
        return Deadline(request.arrived_at + self._timeout_s)

    def check_deadline(self, deadline: Deadline) -> None:
        """Raises RequestExpired: no attempt begins after the deadline."""
        if deadline.passed(self._clock.now()):
            raise RequestExpired("the request's deadline passed")

    def check_engines(self) -> None:
        """Raises NoSchedulableEngine or NoEngine: both legs need an engine before any work is done."""
        now = self._clock.now()
        for leg in (Leg.PREFILL, Leg.DECODE):
            if self._fleet.can_serve(leg, now):
                continue
            if not self._fleet.schedulable(leg):
                raise NoSchedulableEngine(f"roles and pins leave no engine for the {leg.value} leg")
            raise NoEngine(f"no engine can take the {leg.value} leg now")
