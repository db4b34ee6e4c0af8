"""Engines that are out until they prove well: why, when they are looked at next, when they return. Pure.

Failures.md section 5.

| state | event | next |
| --- | --- | --- |
| in | eject | out, looked at after one cadence |
| out | eject | out, the first reason stays |
| out | due | out, looked at again after one more cadence |
| out | due while it is looked at, which then ends in nothing | out, looked at again at once |
| out | a check failed | out, with that check's name and what it said |
| out | every check passed; a peer serves, or this fleet does not return together | in |
| out | every check passed, nobody serves | valid |
| valid | a check failed | out; the others that are valid wait on |
| valid | all who are out are valid, or `WAIT_S` since the first was | asked: KV round those that are valid |
| asked | its KV went well | in, in one change with all others whose did |
| asked | its KV did not | out, with that check's name |
| asked | nothing was shown of it | out, looked at again at once |
| valid | a peer serves meanwhile | out, looked at again at once: now with that peer |

A contracted fleet that lost every engine returns together: one engine alone could prove no transfer, and
would take the whole load. Drained ones are nobody to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from narwhal.model.evidence import Check
from narwhal.model.standing import EjectionView
from narwhal.policy.pace import Pace

WAIT_S = 60.0
CARRIED = "carried over from the owner before"
"""The reason, where a handoff tells none."""


@dataclass(slots=True)
class Ejection:
    """`step`: the readmission check that failed last, "" before the first; `detail` what it said.

    `checks`: how they ended last time. `valid_at`: since when every check is passed, None before.
    `asked`: a look has not ended yet; `late`: the next one was due meanwhile, and could not begin.
    """

    reason: str
    due_at: float
    step: str = ""
    detail: str = ""
    checks: tuple[Check, ...] = ()
    valid_at: float | None = None
    asked: bool = False
    late: bool = False


class Ejections:
    """`pace`: from one look at an engine to the next."""

    __slots__ = ("_out", "_pace")

    def __init__(self, *, pace: Pace) -> None:
        self._pace = pace
        self._out: dict[str, Ejection] = {}

    def __contains__(self, iid: object) -> bool:
        return iid in self._out

    def eject(self, iid: str, reason: str, *, now: float) -> bool:
        """False: it is out already."""
        if iid in self._out:
            return False
        self._out[iid] = Ejection(reason, self._pace.after(now))
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

    def passed(self, iid: str, checks: tuple[Check, ...], *, now: float) -> bool:
        """Every check passed, and it waits for others. False: the engine is not out, or was valid before."""
        out = self._out.get(iid)
        if out is None:
            return False
        out.checks, out.step, out.detail = checks, "", ""
        new, out.valid_at = out.valid_at is None, now if out.valid_at is None else out.valid_at
        return new

    def drop(self, iid: str) -> Ejection | None:
        """In again. None: it was not out."""
        return self._out.pop(iid, None)

    def valid(self, drained: Set[str]) -> tuple[str, ...]:
        """Who waits for others, sorted."""
        return tuple(
            iid for iid, out in sorted(self._out.items()) if out.valid_at is not None and iid not in drained
        )

    def cohort(self, now: float, *, drained: Set[str]) -> tuple[str, ...]:
        """Who is to prove itself together now, sorted; nobody while others are waited for."""
        valid = self.valid(drained)
        since = [at for iid in valid if (at := self._out[iid].valid_at) is not None]
        complete = len(valid) == len(self._out.keys() - drained)
        return valid if since and (complete or now >= min(since) + WAIT_S) else ()

    def look_again(self, engines: Iterable[str], now: float) -> None:
        """What they passed is not enough: due at once."""
        for iid in engines:
            out = self._out.get(iid)
            if out is not None:
                out.valid_at, out.due_at = None, now

    def due(self, now: float) -> tuple[str, ...]:
        """Whom to look at now, sorted; each again after one cadence."""
        due = tuple(sorted(iid for iid, out in self._out.items() if out.due_at <= now))
        for iid in due:
            out = self._out[iid]
            out.due_at = self._pace.after(now)
            out.late, out.asked = out.asked, True
        return due

    def looked(self, iid: str, now: float) -> None:
        """A look at it has ended, and it is not back: the one that was due meanwhile is due at once."""
        out = self._out.get(iid)
        if out is None:
            return
        if out.late:
            out.due_at = now
        out.asked = out.late = False

    def engines(self) -> tuple[str, ...]:
        """Who is out, sorted."""
        return tuple(sorted(self._out))

    def view(self) -> dict[str, EjectionView]:
        """Engine ID to why it is out, sorted."""
        return {
            iid: EjectionView(out.reason, out.step, out.detail, out.checks, waits=out.valid_at is not None)
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
