"""How ejected engines come back: what a readmission check shows, and who waits for whom. Pure.

The states of an engine that is out are those of `narwhal.policy.ejections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from narwhal.model.effect import NOTHING, Effects, tell
from narwhal.model.evidence import Check
from narwhal.policy.ejections import Ejections


class Returns:
    """`eligible` tells who may take new requests; `came_back` is told who does from now on."""

    __slots__ = ("_came_back", "_ejections", "_eligible")

    def __init__(
        self,
        ejections: Ejections,
        *,
        eligible: Callable[[float], Set[str]],
        came_back: Callable[[Iterable[str]], None],
    ) -> None:
        self._ejections = ejections
        self._eligible = eligible
        self._came_back = came_back

    def check_failed(self, iid: str, checks: tuple[Check, ...]) -> Effects:
        """The last of these readmission checks failed: the engine stays out with its name. Told once."""
        if not self._ejections.failed(iid, checks):
            return NOTHING
        name, detail = checks[-1].name, checks[-1].detail
        return (tell("readmission_failed", iid, reason=f"{name}: {detail}", check=name),)

    def readmit(self, iid: str, now: float) -> Effects:
        """Every readmission check passed. Not out: nothing."""
        new = self._ejections.passed(iid, now)
        returned = self.due(now)
        if not new or iid not in self._ejections:
            return returned
        reason = "every check passed; no engine serves, so it waits for the others that are out"
        return (tell("readmission_waits", iid, reason=reason), *returned)

    def due(self, now: float) -> Effects:
        """Brings back in one change whoever has not to wait for others."""
        if not self._ejections.any_valid():
            return NOTHING
        returning = self._ejections.returning(now, peers=bool(self._eligible(now)))
        if not returning:
            return NOTHING
        self._came_back(returning)
        return tuple(
            tell("readmission", iid, reason=f"every check passed; it was ejected for: {out.reason}")
            for iid, out in returning.items()
        )
