"""Role control (control.md section 3): so far floor repair. Pure.

| eligible engines of a role | donors | does |
| --- | --- | --- |
| at its floor or above | | keeps |
| below its floor | some | moves the donor with the fewest resident legs; one a pass |
| below its floor | some, `advisory` | proposes that move |
| below its floor | none | refuses |
| any, fewer engines than floors (a fleet of one) | | keeps |

A donor is an eligible, unpinned engine of the other role, which keeps its own floor without it. An engine
that owes a good health check after a takeover is no donor, and counts as one of its role until it has been
asked: a new owner must not turn the fleet over before its engines could answer. Cooldown, dwell and the
resident guard are for moves that improve a split; a role below its floor has nothing to wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from narwhal.model.engine import Role
from narwhal.model.role_control import DecisionWord, RoleDecision
from narwhal.model.settings import ControllerSettings

FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class EngineSight:
    """One engine as role control sees it. `resident`: legs there now, both kinds."""

    iid: str
    role: Role
    pinned: bool
    eligible: bool
    unverified: bool
    resident: int


class RoleControl:
    """Decides once a pass. `flips` (made or proposed) and `refused` keep the newest decisions."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._advisory = settings.advisory
        self._floors = {Role.PREFILL: settings.min_prefill, Role.DECODE: settings.min_decode}
        self.flips: deque[RoleDecision] = deque(maxlen=settings.flip_history)
        self.refused: deque[RoleDecision] = deque(maxlen=settings.flip_history)
        self.last: RoleDecision | None = None

    def decide(self, sights: Sequence[EngineSight], now: float) -> RoleDecision:
        """Who changes role now; the caller makes a MOVE. A decision that repeats the last one is not kept."""
        decision = self._repair(sights, now)
        before, self.last = self.last, decision
        if before is not None and decision.repeats(before):
            return decision
        if decision.word in (DecisionWord.MOVE, DecisionWord.PROPOSE):
            self.flips.append(decision)
        elif decision.word is DecisionWord.REFUSE:
            self.refused.append(decision)
        return decision

    def _repair(self, sights: Sequence[EngineSight], now: float) -> RoleDecision:
        counts = {role: sum(_counts(sight, role) for sight in sights) for role in Role}
        numbers = {f"eligible_{role}": counts[role] for role in Role}
        numbers |= {f"min_{role}": self._floors[role] for role in Role}
        short = next((role for role in Role if counts[role] < self._floors[role]), None)
        if short is None or len(sights) < sum(self._floors.values()):
            reason = "every role has its floor" if short is None else "fewer engines than floors"
            return RoleDecision(DecisionWord.KEEP, FLOOR, reason, now, numbers)
        why = f"{counts[short]} eligible {short} engines, the floor is {self._floors[short]}"
        donors = self._donors(sights, short.other)
        if not donors:
            reason = f"{why}, and no {short.other} engine can be spared"
            return RoleDecision(DecisionWord.REFUSE, FLOOR, reason, now, numbers)
        donor = min(donors, key=lambda sight: (sight.resident, sight.iid))
        word = DecisionWord.PROPOSE if self._advisory else DecisionWord.MOVE
        return RoleDecision(word, FLOOR, why, now, numbers, donor.iid, short)

    def _donors(self, sights: Sequence[EngineSight], role: Role) -> list[EngineSight]:
        sound = [sight for sight in sights if sight.role is role and sight.eligible]
        return [sight for sight in sound if not sight.pinned] if len(sound) > self._floors[role] else []


def _counts(sight: EngineSight, role: Role) -> bool:
    return sight.role is role and (sight.eligible or sight.unverified)
