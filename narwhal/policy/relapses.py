"""Engines whose good inference probe was refuted by their traffic (failures.md section 3). Pure.

| engine | event | next |
| --- | --- | --- |
| trusted | an inference hold | trusted, its probe is asked at once |
| trusted, on parole | a good probe ended its hold | on parole since then |
| on parole | an inference hold within `PAROLE_S` | relapsed once more: the hold's probe waits for its rest |
| on parole | an inference hold later than that | trusted |
| any | an inference hold for what clients asked and it refused; its good probe | unchanged, asked at once |
| on parole | `GOOD_LEGS` good legs, no failed one between | trusted |
| any | it is out; another ownership begins | trusted |

The rest is one probe interval after the first relapse and two after any further one: a good probe frees the
engine always, and who was mended is asked within two probe intervals.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from narwhal.errors import InvariantViolation

PAROLE_S = 60.0
GOOD_LEGS = 10
_MOST_RESTS = 2


@dataclass(slots=True)
class _Parole:
    """`relapses` so far; `good`: legs since the last failed one."""

    since: float
    relapses: int = 0
    good: int = 0


class Relapses:
    """Who is on parole. A trusted engine has no entry, so good news cost a look-up."""

    __slots__ = ("_excused", "_paroles")

    def __init__(self) -> None:
        self._paroles: dict[str, _Parole] = {}
        self._excused: set[str] = set()
        """Held for what its clients asked, and for nothing else."""

    def held(self, iid: str, now: float) -> int:
        """An inference hold began. Probe intervals for which its probe is to rest, 0 for a trusted engine."""
        parole = self._paroles.get(iid)
        if parole is None:
            return 0
        if now > parole.since + PAROLE_S:
            del self._paroles[iid]
            return 0
        parole.relapses += 1
        parole.good = 0
        return min(parole.relapses, _MOST_RESTS)

    def excuse(self, iid: str) -> None:
        """An inference hold began that may be its clients' doing."""
        self._excused.add(iid)

    def accuse(self, iid: str) -> None:
        """There is more against it than that, or the hold is over."""
        self._excused.discard(iid)

    def freed(self, iid: str, now: float) -> None:
        """A good probe ended its hold."""
        if iid in self._excused:
            return
        parole = self._paroles.setdefault(iid, _Parole(now))
        parole.since, parole.good = now, 0

    def succeeded(self, iid: str) -> None:
        """A good leg."""
        parole = self._paroles.get(iid)
        if parole is not None:
            parole.good += 1
            if parole.good >= GOOD_LEGS:
                del self._paroles[iid]

    def failed(self, iid: str) -> None:
        """A failed leg."""
        parole = self._paroles.get(iid)
        if parole is not None:
            parole.good = 0

    def forget(self, iid: str) -> None:
        self._paroles.pop(iid, None)
        self._excused.discard(iid)

    def clear(self) -> None:
        self._paroles.clear()
        self._excused.clear()

    @property
    def engines(self) -> Set[str]:
        """Those on parole: their good legs count."""
        return self._paroles.keys()

    def check_invariants(self) -> None:
        """Raises InvariantViolation where an engine is on parole that has proved itself."""
        for iid, parole in self._paroles.items():
            if parole.good >= GOOD_LEGS:
                raise InvariantViolation(f"{iid}: on parole after {parole.good} good legs")
