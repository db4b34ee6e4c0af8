"""Cumulative request counters of every router run known here (cluster.md section 3, I4). Pure.

Each run has absolute counters that only its own router raises; merging keeps the greater of each field,
so a late, repeated or reordered merge changes nothing and no count ever goes back. The total is the sum
over runs; the run `base` holds what was folded in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields

from narwhal.errors import InvariantViolation
from narwhal.model.request import Counters, Outcome

_NAMES = tuple(field.name for field in fields(Counters))


class Totals:
    """Counters of one run (`run` is the journal run ID) and of the runs merged in."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._own = dict.fromkeys(_NAMES, 0)
        self._others: dict[str, Counters] = {}
        self.version = 0
        """Grows with every change of the own counters: a flusher compares it with what it sent."""
        self.watchers: list[Callable[[], None]] = []
        """Called in turn after every change of the own counters; each must be quick."""

    def finished(self, outcome: Outcome) -> None:
        """Counts one request, once: its outcome and `offered` together."""
        self._own[outcome] += 1
        self._own["offered"] += 1
        self._changed()

    def missed_slo(self) -> None:
        """Counts one placement of which every candidate violated the SLO. It is no outcome."""
        self._own["unserved"] += 1
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        for watcher in self.watchers:
            watcher()

    @property
    def own(self) -> Counters:
        """What this run counted itself."""
        return Counters(**self._own)

    @property
    def own_counts(self) -> Iterable[int]:
        """The same in the order of the fields of `Counters`, for whoever is told after every request."""
        return self._own.values()

    def vector(self) -> Mapping[str, Counters]:
        """Run to its absolute counters, for a flush."""
        return {**self._others, self._run: self.own}

    def merge(self, runs: Mapping[str, Counters]) -> None:
        """Takes the greater of each field, run by run."""
        for run, counters in runs.items():
            if run == self._run:
                self._own = {name: max(self._own[name], getattr(counters, name)) for name in _NAMES}
            else:
                known = self._others.get(run, Counters())
                self._others[run] = greater(known, counters)

    def total(self) -> Counters:
        """The sum over all runs: what handoff, state and metrics show."""
        return total_of(self.vector().values())

    def others(self) -> Counters:
        """The sum over all runs but the own one."""
        return total_of(self._others.values())

    def check_invariants(self) -> None:
        """Raises InvariantViolation unless offered is the sum of the outcomes in the own run."""
        if self._own["offered"] != sum(self._own[outcome.value] for outcome in Outcome):
            raise InvariantViolation("offered differs from the sum of the outcomes")


def total_of(runs: Collection[Counters]) -> Counters:
    """The sum of each field."""
    return Counters(**{name: sum(getattr(counters, name) for counters in runs) for name in _NAMES})


def greater(a: Counters, b: Counters) -> Counters:
    """The greater of each field."""
    return Counters(**{name: max(getattr(a, name), getattr(b, name)) for name in _NAMES})
