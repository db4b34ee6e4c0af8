"""What the lease machine has in its hands, and how it loses it: fenced at once, given back, or taken away.

| what ended | phase | afterwards |
| --- | --- | --- |
| an acquire that nobody confirmed | acquiring → standby | tries again after a pause |
| a drained lease | draining → released | `Released` is told; competes again after 1 s |
| a fenced lease | stays fenced | its release was answered or given up: watches anew |

A token that was let go of is dead: it is never handed in again.
"""

from __future__ import annotations

from collections import deque

from narwhal.errors import InvariantViolation
from narwhal.model.control import RouterState
from narwhal.model.leadership import Remembered
from narwhal.policy.candidacy import Candidacy, ElectionSettings
from narwhal.policy.intents import Effect, Fenced, Released
from narwhal.policy.phases import HOLDING, Phases
from narwhal.policy.tenure import Tenure


class Tenant(Phases):
    """At most one tenure, and the candidacy that leads to the next. Attributes are for reading only."""

    def __init__(self, settings: ElectionSettings, remembered: Remembered, *, now: float) -> None:
        super().__init__()
        self.timings = settings.timings
        self.candidacy = Candidacy(settings, remembered, now=now)
        self.tenure: Tenure | None = None
        self._dead: deque[str] = deque(maxlen=16)

    def _fresh(self, token: str) -> None:
        if token in self._dead:
            raise InvariantViolation("a token was handed in twice")

    def _fence(self, why: str) -> tuple[Effect, ...]:
        if self.tenure is None:
            return ()
        self._move(RouterState.FENCED)
        self.tenure.end(why)
        return (Fenced(self.tenure.token, why),)

    def _let_go(self, now: float, *, confirmed: bool) -> tuple[Effect, ...]:
        """The present token is done with: never again."""
        token = self._forget()
        if self.phase is RouterState.ACQUIRING:
            self._move(RouterState.STANDBY)
            self.candidacy.unconfirmed(now)
        elif self.phase is RouterState.DRAINING:
            self._move(RouterState.RELEASED)
            self.candidacy.yielded(now)
            return (Released(token, confirmed),)
        elif self.phase is RouterState.FENCED:
            self.candidacy.begin(now)
        return ()

    def _forget(self) -> str:
        token, self.tenure = (self.tenure.token if self.tenure else ""), None
        self._dead.append(token)
        return token

    def _holds(self, token: str) -> bool:
        return self.tenure is not None and self.tenure.token == token and self.phase in HOLDING
