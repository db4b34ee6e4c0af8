"""Engines that are out until they prove well: why, when they are looked at next, when they return. Pure.

Failures.md section 5.

| state | event | next |
| --- | --- | --- |
| in | eject | out, looked at after one cadence |
| out | eject | out, the first reason stays |
| out | due | out, looked at again after one more cadence |
| out | a check failed | out, with that check's name and what it said |
| out | every check passed | valid |
| valid | a check failed | out; the others that are valid wait on |
| valid | a peer serves, or this fleet does not return together | in |
| valid | nobody serves, everyone who is out is valid | in, all of them |
| valid | nobody serves, `WAIT_S` since the first one was valid | in, all that are valid |

A contracted fleet that lost every engine returns together: one engine alone could prove no transfer, and
would take the whole load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from narwhal.model.evidence import Check
from narwhal.model.standing import EjectionView

WAIT_S = 60.0
CARRIED = "carried over from the owner before"
"""The reason, where a handoff tells none."""


@dataclass(slots=True)
class Ejection:
    """`step`: the readmission check that failed last, "" before the first; `detail` what it said.

    `checks`: how they ended last time. `valid_at`: since when every check is passed, None before.
    """

    reason: str
    due_at: float
    step: str = ""
    detail: str = ""
    checks: tuple[Check, ...] = ()
    valid_at: float | None = None


class Ejections:
    """`every_s`: the pause between two looks at one engine. `together`: where nobody serves, the valid ones
    wait for each other."""

    __slots__ = ("_every_s", "_out", "_together")

    def __init__(self, *, every_s: float, together: bool = False) -> None:
        self._every_s = every_s
        self._together = together
        self._out: dict[str, Ejection] = {}

    def __contains__(self, iid: object) -> bool:
        return iid in self._out

    def eject(self, iid: str, reason: str, *, now: float) -> bool:
        """False: it is out already."""
        if iid in self._out:
            return False
        self._out[iid] = Ejection(reason, now + self._every_s)
        return True

    def failed(self, iid: str, checks: tuple[Check, ...]) -> bool:
        """Keeps how they ended: the last one failed. False: it is not out, or that was told before."""
        out = self._out.get(iid)
        if out is None:
            return False
        out.checks, step, detail = checks, checks[-1].name, checks[-1].detail
        new = out.valid_at is not None or (out.step, out.detail) != (step, detail)
        out.step, out.detail, out.valid_at = step, detail, None
        return new

    def passed(self, iid: str, now: float) -> bool:
        """Every check passed. False: the engine is not out, or was valid before."""
        out = self._out.get(iid)
        if out is None or out.valid_at is not None:
            return False
        out.valid_at = now
        return True

    def drop(self, iid: str) -> None:
        """In again by an operator's word. Not out: nothing."""
        self._out.pop(iid, None)

    def any_valid(self) -> bool:
        return any(out.valid_at is not None for out in self._out.values())

    def returning(self, now: float, *, peers: bool) -> Mapping[str, Ejection]:
        """Who is in from now on, in one change, sorted by ID. `peers`: any engine serves."""
        valid = {iid: out.valid_at for iid, out in sorted(self._out.items()) if out.valid_at is not None}
        alone = self._together and not peers
        if not valid or (alone and len(valid) < len(self._out) and now < min(valid.values()) + WAIT_S):
            return {}
        return {iid: self._out.pop(iid) for iid in valid}

    def due(self, now: float) -> tuple[str, ...]:
        """Whom to look at now, sorted; each again after one cadence."""
        due = tuple(sorted(iid for iid, out in self._out.items() if out.due_at <= now))
        for iid in due:
            self._out[iid].due_at = now + self._every_s
        return due

    def engines(self) -> tuple[str, ...]:
        """Who is out, sorted."""
        return tuple(sorted(self._out))

    def view(self) -> dict[str, EjectionView]:
        """Engine ID to why it is out, sorted."""
        return {
            iid: EjectionView(out.reason, out.step, out.detail, out.checks)
            for iid, out in sorted(self._out.items())
        }

    def export(self) -> dict[str, dict[str, str]]:
        """Of those who are out, for a handoff."""
        return {
            iid: {"reason": out.reason, "step": out.step, "detail": out.detail}
            for iid, out in sorted(self._out.items())
        }

    def restore(self, ejected: Iterable[str], told: Mapping[str, object], *, now: float) -> None:
        """Replaces everything: these are out, and due at once. `told`: as `export`."""
        self._out = {}
        for iid in ejected:
            words = told.get(iid)
            word = words if isinstance(words, Mapping) else {}
            why, step, detail = (str(word.get(name, "")) for name in ("reason", "step", "detail"))
            self._out[iid] = Ejection(why or CARRIED, now, step, detail)
