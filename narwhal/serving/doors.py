"""What a request must pass before it is placed: control, the in-flight limit, the queue, engines at all."""

from __future__ import annotations

from narwhal.clock import Clock
from narwhal.errors import CapacityError, NoEngine, NoSchedulableEngine, Overloaded, RequestExpired
from narwhal.model.request import Deadline, InferenceRequest
from narwhal.policy.admission import Admission
from narwhal.policy.fleet import Fleet
from narwhal.serving.control import ControlCheck
from narwhal.serving.ledger import Entry
from narwhal.serving.waiting_room import Waiter, WaitingRoom


class Doors:
    """The checks before placement (serving.md sections 1.1 and 1.2)."""

    def __init__(
        self,
        admission: Admission,
        *,
        control: ControlCheck,
        fleet: Fleet,
        clock: Clock,
    ) -> None:
        self._admission = admission
        self._control = control
        self.gate = control.gate
        self._fleet = fleet
        self._clock = clock
        self.room = WaitingRoom(admission, clock=clock, refusal=self.refusal)

    async def admit(self, entry: Entry, inflight: int) -> Waiter | None:
        """`inflight` includes the request itself. None: it has its place, else it stands in line.

        Raises NotOwner or Overloaded.
        """
        await self._control.admit()
        if not self._admission.admits(inflight):
            raise Overloaded(self._admission.full)
        # Without a queue the limit is all there is to keep.
        return self.room.enter(entry) if self._admission.capacity else None

    async def turn(self, waiter: Waiter) -> None:
        """Waits in line. Raises QueueExpired, NotOwner, NoEngine or NoSchedulableEngine."""
        await self.room.turn(waiter)
        if (refusal := self.refusal()) is not None:
            raise refusal

    def deadline(self, request: InferenceRequest) -> Deadline:
        """The one deadline of the request, from its arrival."""
        return Deadline(request.arrived_at + self._admission.request_timeout_s)

    def check_deadline(self, deadline: Deadline) -> None:
        """Raises RequestExpired: no attempt begins after the deadline."""
        if deadline.passed(self._clock.now()):
            raise RequestExpired("the request's deadline passed")

    def demand(self) -> None:
        """Raises NotOwner: no attempt begins without control."""
        self._control.demand()

    def refusal(self) -> CapacityError | None:
        """Why no request can be placed now; None while nothing forbids it."""
        return self._control.refusal() or self.lack()

    def lack(self) -> CapacityError | None:
        """NoSchedulableEngine or NoEngine: both legs need an engine before any work is done. NotOwner where
        the whole fleet was held meanwhile."""
        leg = self._fleet.lacking(self._clock.now())
        if leg is None:
            return None
        if (refusal := self._control.refusal()) is not None:
            return refusal
        if not self._fleet.schedulable(leg):
            return NoSchedulableEngine(f"roles and pins leave no engine for the {leg.value} leg")
        return NoEngine(f"no engine can take the {leg.value} leg now")
