"""The control gate: the one object that the keeper thread and the main thread share.

Readers compare the clock with D in an immutable value, so a read needs no lock; every change is one step
under the lock. *Fenced* is final for a token: from then on nothing extends or opens it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from narwhal.clock import Clock
from narwhal.cluster.doubt import Doubt
from narwhal.model.control import OwnerRef, RouterRole, RouterState, role_of
from narwhal.model.leadership import LeaseSight
from narwhal.model.lease import holder_of
from narwhal.policy.phases import HOLDING

HANDOVER_S = 2.0
"""How long a handover is believed to be under way. How long *one request* waits for its end is its caller's
limit (500 ms): bounding the handover by that would let late requests burn their retries in a moment."""

BELIEVED = 2**33
"""How far above ours an engine's epoch may be. Epochs follow the store's clock in seconds: an honest one is
never centuries ahead, and such a one would use up the numbers that are left (`MAX_EPOCH`) for good
(docs/adr/0024)."""

STANDBY = "standby"
STORE_UNAVAILABLE = "lease store unavailable"
SHUTTING_DOWN = "shutting down"
RAN_OUT = "the lease ran out on this router's clock"

log = logging.getLogger("narwhal.cluster")


@dataclass(frozen=True, slots=True)
class Grip:
    """This router's hold on the lease. `valid_until` is D. `confirmations` counts replies before D."""

    token: str = field(repr=False)
    epoch: int
    holder: str
    valid_until: float
    admitting: bool = False
    fenced_why: str = ""
    confirmations: int = 1


class LeasedGate:
    """ControlGate over a lease. `grant`, `extend` and `alive` are the keeper's, the rest the main loop's;
    `fence` is anybody's."""

    def __init__(self, clock: Clock, router_id: str) -> None:
        self._clock = clock
        self._router_id = router_id
        self._lock = threading.Lock()
        self._grip: Grip | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.sight = LeaseSight()
        """Swapped whole by the keeper."""
        self.shutting_down = False
        self.yielded_at: float | None = None
        self.supersede: Callable[[str, int, str], None] = lambda token, floor, why: None
        """Ends a token because the epoch `floor` is known elsewhere; assembly hands in the keeper's."""
        self.doubt = Doubt(None, clock, lasts_s=HANDOVER_S)
        """Assembly hands in the one that can ask."""
        self._last_liar = ("", 0)

    # --- keeper thread ---------------------------------------------------------------------------

    def grant(self, token: str, epoch: int, *, valid_until: float) -> None:
        with self._lock:
            self._grip = Grip(token, epoch, holder_of(self._router_id, token), valid_until)

    def extend(self, token: str, valid_until: float) -> bool:
        """Moves D, or refuses: fenced, another token's, or the present D has passed by now."""
        with self._lock:
            grip = self._grip
            if (
                grip is None
                or grip.token != token
                or grip.fenced_why
                or self._clock.now() >= grip.valid_until
            ):
                return False
            later = max(grip.valid_until, valid_until)
            self._grip = replace(grip, valid_until=later, confirmations=grip.confirmations + 1)
            return True

    def alive(self, token: str) -> bool:
        """False once the token was fenced here: nothing more may be sent under it."""
        grip = self._grip
        return grip is not None and grip.token == token and not grip.fenced_why

    # --- any thread ------------------------------------------------------------------------------

    def fence(self, token: str, why: str) -> bool:
        """Ends the token for good; False if it was ended already or is not the present one."""
        with self._lock:
            grip = self._grip
            if grip is None or grip.token != token or grip.fenced_why:
                return False
            self._grip = replace(grip, admitting=False, fenced_why=why)
            return True

    # --- main loop -------------------------------------------------------------------------------

    def open(self, token: str) -> bool:
        """Admission may begin: the first fenced write is through. False: too late."""
        with self._lock:
            grip = self._grip
            late = grip is None or grip.token != token or grip.fenced_why
            if grip is None or late or self._clock.now() >= grip.valid_until:
                return False
            self._grip = replace(grip, admitting=True)
        self.yielded_at = None
        self.changed()
        return True

    def close(self) -> str:
        """Ends admission and keeps the lease: the first step of a yield. The token, "" if there is none."""
        with self._lock:
            grip = self._grip
            if grip is None or grip.fenced_why:
                return ""
            self._grip = replace(grip, admitting=False)
            self.yielded_at = self._clock.now()
            return grip.token

    def changed(self) -> None:
        """The sight or the grip changed: whoever waits for a decision looks again. Main loop only."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def grip(self) -> Grip | None:
        return self._grip

    @property
    def leg_epoch(self) -> int | None:
        """Of the newest own lease, also after its end: a request past prefill dispatch goes on under it."""
        grip = self._grip
        return grip.epoch if grip else None

    def probe_epoch(self, now: float) -> int | None:
        """While the lease is ours: a standby's probes carry none."""
        grip = self._grip
        held = grip is not None and not grip.fenced_why and now < grip.valid_until
        return grip.epoch if grip and held else None

    # --- the port --------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        grip = self._grip
        return grip.epoch if grip and not grip.fenced_why else self.sight.epoch

    @property
    def holder(self) -> str:
        grip = self._grip
        return grip.holder if grip and not grip.fenced_why else self.sight.holder

    def may_admit(self, now: float) -> bool:
        grip = self._grip
        return grip is not None and grip.admitting and now < grip.valid_until

    def refusal(self, now: float) -> str:
        if self.may_admit(now):
            return ""
        if self.shutting_down:
            return SHUTTING_DOWN
        if why := self.fenced_why(now):
            return f"fenced: {why}"
        if not self.sight.store_reachable:
            return STORE_UNAVAILABLE
        return STANDBY

    def fenced_why(self, now: float) -> str:
        """Why this router is fenced at this instant, "" if it is not."""
        grip = self._grip
        if grip is None or role_of(self.state(now)) is not RouterRole.FENCED:
            return ""
        return grip.fenced_why or RAN_OUT

    def state(self, now: float) -> RouterState:
        """The keeper's state, corrected by what the gate knows sooner: fenced, or D has passed."""
        grip, state = self._grip, self.sight.state
        holding = state in HOLDING
        if grip is not None and holding and (grip.fenced_why or now >= grip.valid_until):
            return RouterState.FENCED
        return state

    def overruled(self, iid: str, epoch: int) -> bool:
        grip = self._grip
        if grip is None or epoch <= grip.epoch:
            if self._last_liar != (iid, epoch):
                self._last_liar = (iid, epoch)
                ours = grip.epoch if grip else "none"
                log.warning(
                    "engine %s calls ours a stale epoch and knows %d (ours: %s): left", iid, epoch, ours
                )
            return False
        if epoch > grip.epoch + BELIEVED:
            if self._last_liar != (iid, epoch):
                self._last_liar = (iid, epoch)
                log.error(
                    "engine %s claims epoch %d, which no owner can have reached (ours: %d): "
                    "not believed; restart the engine: it refuses our requests",
                    iid,
                    epoch,
                    grip.epoch,
                )
            return False
        if not grip.fenced_why:
            self.supersede(grip.token, epoch, f"engine {iid} knows epoch {epoch}")
        return True

    async def decided(self, timeout_s: float) -> None:
        now = self._clock.now()
        until = now + timeout_s
        if (owner := self.stands_by(now)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.doubt.look(owner, self.sight.epoch)
            now = self._clock.now()
        while self._undecided(now) and now < until:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - now):
                    await waiter
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            now = self._clock.now()

    def _undecided(self, now: float) -> bool:
        """A handover is on, began at most 2 s ago, and nobody is known to own; or it ends here any moment; or
        the owner is not to be found since as short a time."""
        if self.may_admit(now):
            return False
        if self.sight.state is RouterState.RESTORING:
            return self.state(now) is RouterState.RESTORING
        if self.stands_by(now) is not None:
            return self.doubt.of(self.sight.epoch, now)
        began = max(_or_never(self.yielded_at), _or_never(self.sight.released_at))
        grip = self._grip
        own = grip is not None and grip.epoch == self.sight.epoch
        return now - began < HANDOVER_S and (self.sight.record != "held" or own)

    def stands_by(self, now: float) -> OwnerRef | None:
        """The other router that holds the lease which this one stands by."""
        sight = self.sight
        other = sight.owner is not None and sight.owner.router_id != self._router_id
        standing_by = role_of(self.state(now)) is RouterRole.STANDBY and not self.shutting_down
        return sight.owner if standing_by and other and sight.record == "held" else None


def _or_never(at: float | None) -> float:
    return -math.inf if at is None else at
