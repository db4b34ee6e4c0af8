"""Engines that ask for less (failures.md section 9, "Nobody" and "A misconfigured engine"). Pure.

| engine | event | next |
| --- | --- | --- |
| free | 408 or 429 | relieved for as long as it asked (`Retry-After`, else 1 s; 60 s at most) |
| relieved until T | 408 or 429 | relieved until the later of T and what it asks now |
| relieved until T | now reaches T | free, by itself |
| free, relieved | a leg was told 429, an inference probe 408 or 429 | saturated, unless it was, since now |
| saturated since S | `eject_after` of these, the last 30 s after S or later | suspected, each time |
| saturated since S, but not so far | an inference probe was told 408 or 429 | that tells nothing else |
| saturated | any other answer, be it a leg's 408; a good inference probe | not saturated |
| saturated | nothing for longer than it asked, or than probes pause, and 5 s | not saturated: nobody knows |

A leg's 408 may be about its request, which came too slowly; our own probe does not.
A relieved engine is chosen only when no other can take the leg: that is how its share is lowered. No answer
at all (no connection, no reply in time) says nothing about saturation.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import inf

from narwhal.errors import InvariantViolation
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.policy.faults import NO_ANSWER

ASKED_S = 1.0
"""Seconds, where the engine names none."""
MOST_ASKED_S = 60.0
SATURATED_S = 30.0
"""Back-pressure without any other answer for so long is a fault."""
GRACE_S = 5.0
"""Seconds beyond what it asked for, or the pause of probes, after which the next 429 is a first one."""
TOO_MANY = "overload:429"
"""The way of a leg that was answered 429."""


@dataclass(slots=True)
class _Saturation:
    """`until`: a 429 later than that is no more of the same."""

    since: float
    until: float
    answers: int = 0


class BackPressure:
    """Who is relieved, and who says nothing but 429."""

    __slots__ = ("_eject_after", "_every_s", "_relieved", "_saturated")

    def __init__(self, *, eject_after: int, every_s: float) -> None:
        """`every_s`: pause between two inference probes of one engine: one that is held gets nothing else."""
        self._eject_after = eject_after
        self._every_s = every_s
        self._relieved: dict[str, float] = {}
        self._saturated: dict[str, _Saturation] = {}

    def failed(self, evidence: LegFailed, now: float) -> str:
        """Takes any failed leg; a sentence when the engine is suspected, "" when not."""
        if evidence.failure is not FailureClass.OVERLOAD:
            if evidence.failure not in NO_ANSWER:
                self.answered(evidence.iid)
            return ""
        self._relieve(evidence.iid, evidence.retry_after_s, now=now)
        if evidence.way != TOO_MANY:
            self.answered(evidence.iid)
            return ""
        saturation = self._count(evidence.iid, now)
        if saturation is None:
            return ""
        return f"nothing but 429 for {now - saturation.since:.0f} s, {saturation.answers} times"

    def probed(self, iid: str, now: float) -> bool:
        """An inference probe was answered 408 or 429. True: that is a fault by now, not a burst."""
        return self._count(iid, now) is not None

    def _count(self, iid: str, now: float) -> _Saturation | None:
        """One more "later"; the saturation once it is a fault."""
        saturation = self._saturated.get(iid)
        if saturation is None or now > saturation.until:
            saturation = self._saturated[iid] = _Saturation(now, now)
        asked_s = self._relieved.get(iid, now) - now
        saturation.until = max(saturation.until, now + max(asked_s, self._every_s) + GRACE_S)
        saturation.answers += 1
        lasted = saturation.answers >= self._eject_after and now - saturation.since >= SATURATED_S
        return saturation if lasted else None

    def _relieve(self, iid: str, asked_s: float | None, *, now: float) -> None:
        until = now + min(ASKED_S if asked_s is None else asked_s, MOST_ASKED_S)
        if until > now:
            self._relieved[iid] = max(until, self._relieved.get(iid, 0.0))

    def answered(self, iid: str) -> None:
        """It gave something else than 429."""
        if iid in self._saturated:
            del self._saturated[iid]

    def forget(self, iid: str) -> None:
        """It begins anew, after a good inference probe or a readmission."""
        self._saturated.pop(iid, None)

    def clear(self) -> None:
        """Another ownership begins."""
        self._relieved.clear()
        self._saturated.clear()

    def saturated(self, now: float) -> Set[str]:
        """Engines that say "later" and nothing else now. Forgets those of which that is over."""
        for iid in [iid for iid, one in self._saturated.items() if now > one.until]:
            del self._saturated[iid]
        return self._saturated.keys()

    @property
    def counted(self) -> Set[str]:
        """As `saturated`, with those of which it may be over: a good leg ends it."""
        return self._saturated.keys()

    @property
    def idle(self) -> bool:
        """Nobody asked for anything lately: `relieved` need not be called."""
        return not self._relieved

    def relieved(self, now: float) -> Mapping[str, float]:
        """Engine ID to when its relief ends, after `now`; may be empty. Forgets what is over."""
        if any(until <= now for until in self._relieved.values()):
            self._relieved = {iid: until for iid, until in self._relieved.items() if until > now}
        return self._relieved

    def next_end(self, now: float) -> float:
        """When the next relief ends; inf without any."""
        return min(self.relieved(now).values(), default=inf)

    def check_invariants(self, now: float) -> None:
        """Raises InvariantViolation where a relief lasts longer than any can."""
        if any(until > now + MOST_ASKED_S for until in self.relieved(now).values()):
            raise InvariantViolation("back-pressure: a relief longer than any engine may ask")
