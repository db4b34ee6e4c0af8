"""How ejected engines come back: what a readmission check shows, and who waits for whom. Pure.

The states of an engine that is out are those of `narwhal.policy.ejections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from narwhal.model.effect import NOTHING, Effect, Effects, ProbeKind, ProbeWanted, tell
from narwhal.model.evidence import Check, CohortProved
from narwhal.policy.ejections import Ejections
from narwhal.policy.readmission import FAILED, FINAL_HEALTH


@dataclass(frozen=True, slots=True)
class Around:
    """What else stands. `eligible`: who may take new requests; `drained`: who is out by an operator's word;
    `came_back` is told who serves from now on."""

    eligible: Callable[[float], Set[str]]
    drained: Callable[[], Set[str]]
    came_back: Callable[[Iterable[str]], None]


class Returns:
    """`together`: a fleet that lost every engine comes back in one change (a contracted one)."""

    __slots__ = ("_around", "_ejections", "_together")

    def __init__(self, ejections: Ejections, around: Around, *, together: bool) -> None:
        self._ejections = ejections
        self._around = around
        self._together = together

    def check_failed(self, iid: str, checks: tuple[Check, ...]) -> Effects:
        """The last of these readmission checks failed: the engine stays out with its name. Told once."""
        if not self._ejections.failed(iid, checks):
            return NOTHING
        name, detail = checks[-1].name, checks[-1].detail
        return (tell("readmission_failed", iid, reason=f"{name}: {detail}", check=name),)

    def readmit(self, iid: str, checks: tuple[Check, ...], *, now: float) -> Effects:
        """Every one of these readmission checks passed. Not out: nothing."""
        if not self._together or self._around.eligible(now):
            return self._back((iid,))
        new = self._ejections.passed(iid, checks, now=now)
        asked = self.due(now)
        if not new:
            return asked
        reason = "every check passed; no engine serves, so it comes back with the others that are out"
        return (tell("readmission_waits", iid, reason=reason), *asked)

    def due(self, now: float) -> Effects:
        """Those who waited long enough prove themselves together, or one by one where somebody serves now."""
        drained = self._around.drained()
        waiting = self._ejections.valid(drained)
        if waiting and self._around.eligible(now):
            self._ejections.look_again(waiting, now)
            return NOTHING
        members = self._ejections.cohort(now, drained=drained) if waiting else ()
        return (ProbeWanted(ProbeKind.COHORT, members[0], members=members),) if members else NOTHING

    def proved(self, evidence: CohortProved, now: float) -> Effects:
        """How the transfers among those who waited went: those that did well come back, in one change."""
        waiting = self._ejections.valid(self._around.drained())
        told = [one for one in evidence.told if one.iid in waiting]
        failed = [one for one in told if one.checks and one.checks[-1].outcome == FAILED]
        well = [one.iid for one in told if one.conclusive and one.checks and _is_last(one.checks[-1])]
        effects = [effect for one in failed for effect in self.check_failed(one.iid, one.checks)]
        self._ejections.look_again({one.iid for one in told if one not in failed}.difference(well), now)
        return (*effects, *self._back(well))

    def _back(self, engines: Iterable[str]) -> Effects:
        effects: list[Effect] = []
        for iid in engines:
            out = self._ejections.drop(iid)
            if out is not None:
                self._around.came_back((iid,))
                reason = f"every check passed; it was ejected for: {out.reason}"
                effects.append(tell("readmission", iid, reason=reason))
        return tuple(effects)


def _is_last(check: Check) -> bool:
    return check.name == FINAL_HEALTH and check.outcome != FAILED
