"""One token's life at its holder: sends, deadline D, renewals, and its end (cluster.md section 2). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from narwhal.model.lease import Acquired, LeaseState, LeaseVersion, LeaseView
from narwhal.model.settings import LeaseTimings
from narwhal.policy.intents import Acquire, Release, Renew, Rest

LAST_ATTEMPT_S = 0.1
"""No attempt starts later than this before D."""
STALL_POLL_S = 0.1
"""How often a due renewal looks whether the main loop ticks again."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """An own token that we have stopped using and whose record may be swapped at sight.

    Before its D, for until then nobody else can own, and on the server that confirmed it last, for another
    one may show what was before somebody else did. Otherwise that record is watched like any other.
    """

    token: str = field(repr=False)
    inc: str
    until: float

    def covers(self, view: LeaseView) -> bool:
        """The view shows our record, where it was confirmed."""
        version = view.version or LeaseVersion("", 0)
        return (version.token, str(view.inc), view.state) == (self.token, self.inc, LeaseState.HELD)


@dataclass(slots=True)
class Tenure:
    """From the first send of an acquire until the token is done with. Seconds are the router's clock.

    `deadline` is D, 0 until granted. `reclaims`: the own older token whose record this one swaps.
    `sent`: before the send of the latest attempt; a reply is always that of the latest attempt.
    """

    call: Acquire
    timings: LeaseTimings
    first_sent: float
    sent: float
    reclaims: Reclaim | None = None
    epoch: int = 0
    life: str = field(default="", repr=False)
    seq: int = 0
    deadline: float = 0.0
    asked: float = -inf
    """Before the question to the voters that all pledged to."""
    renew_at: float = inf
    ending: Release | None = None
    ending_until: float = -inf

    @property
    def token(self) -> str:
        return self.call.token

    @property
    def term_s(self) -> float:
        """T − M: what a confirmed attempt is worth, counted from before its send."""
        return self.timings.ttl_s - self.timings.safety_margin_s

    def grant(self, reply: Acquired) -> None:
        """After AGAIN an earlier attempt was the one that took: D counts from the first send."""
        self.epoch, self.life = reply.epoch, reply.life
        self.deadline = (self.first_sent if reply.again else self.sent) + self.term_s
        self.renew_at = self.sent + self.timings.renew_interval_s

    def renewal(self, now: float) -> Renew:
        """The next attempt: a seq never used before, whatever became of the last one."""
        self.seq += 1
        self.sent = now
        self.renew_at = now + self.timings.renew_interval_s
        return Renew(self.token, self.epoch, self.seq, self.life)

    def usable(self, now: float, *, pledged_until: float) -> bool:
        """A grant that is read at `now`: before D, and not under a promise to another voter."""
        return pledged_until <= now < self.deadline

    def hold(self, now: float, *, main_alive: bool) -> Rest | Renew:
        """What is next for a lease that is held."""
        if now >= self.retry_until:
            return Rest(self.deadline if now < self.deadline else inf)
        if now < self.renew_at:
            return Rest(min(self.renew_at, self.deadline))
        if not main_alive:
            return Rest(min(now + STALL_POLL_S, self.deadline))
        return self.renewal(now)

    def reclaim(self) -> Reclaim:
        """What is left of a granted token that ends now. A life tells the incarnation of all its renewals."""
        return Reclaim(self.token, self.life.rpartition("/")[0], self.deadline)

    def pledged(self, asked: float) -> None:
        """Nobody else acquires before `asked` + T: worth as much as a renewal sent then."""
        self.asked = asked
        self.deadline = max(self.deadline, asked + self.term_s)

    def extend(self, life: str) -> None:
        self.deadline = max(self.deadline, self.sent + self.term_s)
        self.life = life

    def end(self, reason: str, *, successor: str = "", until: float = -inf) -> None:
        """Release is what is left to do; attempts are repeated until `until`."""
        self.ending = Release(self.token, reason, successor)
        self.ending_until = until

    @property
    def retry_until(self) -> float:
        """No attempt of the present call may start at or after this."""
        if self.ending is not None:
            return self.ending_until
        granted_until = self.deadline if self.epoch else self.first_sent + self.term_s
        return granted_until - LAST_ATTEMPT_S
