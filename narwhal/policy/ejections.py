"""Engines that are out until they prove well: why, and when they are looked at next. Pure.

Failures.md section 5.

| state | event | next |
| --- | --- | --- |
| in | eject | out, looked at after one cadence |
| out | eject | out, the first reason stays |
| out | due | out, looked at again after one more cadence |
| out | a check failed | out, with that check's name and what it said |
| out | every check passed | in |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Ejection:
    """`step`: the readmission check that failed last, "" before the first; `detail` what it said."""

    reason: str
    due_at: float
    step: str = ""
    detail: str = ""


class Ejections:
    """`every_s`: the pause between two looks at one engine."""

    __slots__ = ("_every_s", "_out")

    def __init__(self, *, every_s: float) -> None:
        self._every_s = every_s
        self._out: dict[str, Ejection] = {}

    def __contains__(self, iid: object) -> bool:
        return iid in self._out

    def eject(self, iid: str, reason: str, *, now: float) -> bool:
        """False: it is out already."""
        if iid in self._out:
            return False
        self._out[iid] = Ejection(reason, now + self._every_s)
        return True

    def of(self, iid: str) -> Ejection | None:
        return self._out.get(iid)

    def failed(self, iid: str, step: str, *, detail: str) -> bool:
        """Keeps what failed. False: the engine is not out, or the same was told before."""
        out = self._out.get(iid)
        if out is None or (out.step, out.detail) == (step, detail):
            return False
        out.step, out.detail = step, detail
        return True

    def readmit(self, iid: str) -> Ejection | None:
        """None: it was not out."""
        return self._out.pop(iid, None)

    def due(self, now: float) -> tuple[str, ...]:
        """Whom to look at now, sorted; each again after one cadence."""
        due = tuple(sorted(iid for iid, out in self._out.items() if out.due_at <= now))
        for iid in due:
            self._out[iid].due_at = now + self._every_s
        return due

    def engines(self) -> tuple[str, ...]:
        """Who is out, sorted."""
        return tuple(sorted(self._out))

    def restore(self, ejected: Iterable[str], now: float, *, reason: str) -> None:
        """Replaces everything: these are out, and due at once."""
        self._out = {iid: Ejection(reason, now) for iid in ejected}
