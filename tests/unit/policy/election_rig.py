"""A lease machine with its clock and its replies in a test's hands."""

from __future__ import annotations

import itertools

from narwhal.model.control import RouterState
from narwhal.model.leadership import Remembered
from narwhal.model.lease import Acquired, Incarnation, LeaseState, LeaseVersion, LeaseView
from narwhal.model.settings import LeaseTimings
from narwhal.policy.candidacy import ElectionSettings
from narwhal.policy.election import Election
from narwhal.policy.intents import Acquire, Effect, Inputs, Intent, Peek, Renew, Reply, Rest

INC = Incarnation("a" * 40, "b" * 40)
OTHER_INC = Incarnation("c" * 40, "b" * 40)
LIFE = f"{INC}/token:0"
HELD = LeaseView(INC, "master", LeaseState.HELD, LeaseVersion("x", 4), epoch=7, ttl_ms=5000, owner="r1")
RELEASED = LeaseView(
    INC, "master", LeaseState.RELEASED, LeaseVersion("x", 4), epoch=7, ttl_ms=5000,
    record_inc=str(INC), sure=True,
)  # fmt: skip
EMPTY = LeaseView(INC, "master")


class Rig:
    """T 5, R 1, M 1, P 0.25: D is 4 s after a send."""

    last_inputs: Inputs

    def __init__(self, remembered: Remembered | None = None, *, prefer_standby: bool = False) -> None:
        settings = ElectionSettings("r0", LeaseTimings(), prefer_standby)
        self.machine = Election(settings, remembered or Remembered(), now=0.0)
        self.now = 0.0
        self._numbers = itertools.count(1)
        self.inputs: dict[str, object] = {}

    def next(self, now: float | None = None) -> Intent:
        self.now = self.now if now is None else now
        number = next(self._numbers)
        self.last_inputs = Inputs(f"token-{number}", f"nonce-{number}", 0.0, **self.inputs)  # type: ignore[arg-type]
        intent = self.machine.next(self.now, self.last_inputs)
        self.machine.check_invariants()
        return intent

    def answer(self, reply: Reply | None, now: float | None = None) -> tuple[Effect, ...]:
        self.now = self.now if now is None else now
        effects = self.machine.answered(reply, self.now)
        self.machine.check_invariants()
        return effects

    def rest_until(self) -> float:
        """Now if something is due, else when the rest ends."""
        intent = self.next()
        if isinstance(intent, Rest):
            return intent.until
        assert intent == Peek()
        self.machine._pending = None
        self.machine.candidacy.nudge(self.now)
        return self.now

    def see(self, view: LeaseView, now: float) -> Intent:
        """Rests until `now`, peeks, is shown `view`; what comes next."""
        assert self.next(now) == Peek()
        self.answer(view)
        return self.next()

    def swap(self, own: LeaseView) -> str:
        """Lets time pass and shows `own` at each peek until an acquire is sent: its token."""
        while True:
            intent = self.next()
            match intent:
                case Acquire(token, expected):
                    assert expected == own.version
                    return token
                case Rest(until):
                    self.now = until
                case _:
                    assert intent == Peek()
                    self.answer(own)

    def to_acquire(self, now: float = 10.0) -> Acquire:
        """Sees a sure release and sends its acquire."""
        intent = self.see(RELEASED, now)
        assert isinstance(intent, Acquire)
        return intent

    def grant(self, epoch: int) -> None:
        """The acquire that was sent takes, at once."""
        self.answer(Acquired(epoch, LIFE))

    def to_restoring(self, now: float = 10.0, epoch: int = 8) -> str:
        token = self.to_acquire(now).token
        self.grant(epoch)
        return token

    def to_owner(self, now: float = 10.0, epoch: int = 8) -> str:
        token = self.to_restoring(now, epoch)
        self.machine.opened(token)
        assert self.machine.phase is RouterState.OWNER
        return token

    def renewal(self, now: float) -> Renew:
        intent = self.next(now)
        assert isinstance(intent, Renew)
        return intent

    def rest(self, now: float | None = None) -> float:
        intent = self.next(now)
        assert isinstance(intent, Rest), intent
        return intent.until
