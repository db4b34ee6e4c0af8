"""Probes that suspects owe, until an answer settles them (failures.md section 3). Pure.

| kind | owed for | asked again |
| --- | --- | --- |
| health | a timeout or overload streak | every pass until settled |
| inference | an inference hold, a timeout streak after its health check | every `every_s` |

| state | event | next |
| --- | --- | --- |
| free | owe | owed, due at once |
| owed | owe | owed, with more producers |
| owed | due at `now` | owed, due again after its pause: an answer that never comes delays, it loses nothing |
| owed | inconclusive | owed, due after its pause |
| owed | settled | free |

Whether a probe of that kind runs already is for whoever runs them: it drops what is asked twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from narwhal.model.effect import ProbeKind


@dataclass(slots=True)
class Owed:
    """One probe that is owed. `producers`: whose transfers failed, "" = local, for an inference probe.

    `consumer`: who is to pull the engine's own KV, for a suspect producer; it goes before `producers`.
    `then_inference`: once a health check passed, an inference probe without a hold is owed too.
    """

    reason: str
    due_at: float
    producers: list[str] = field(default_factory=list)
    consumer: str = ""
    then_inference: bool = False
    turn: int = 0


class Checks:
    """What is owed, one entry an engine and kind. `every_s`: pause between inference probes of one engine."""

    __slots__ = ("_every_s", "_owed")

    def __init__(self, *, every_s: float) -> None:
        self._every_s = every_s
        self._owed: dict[ProbeKind, dict[str, Owed]] = {ProbeKind.HEALTH: {}, ProbeKind.INFERENCE: {}}

    def owe(self, kind: ProbeKind, iid: str, *, reason: str, now: float) -> Owed:
        """The entry, for the caller to add to; a new one is due at once."""
        return self._owed[kind].setdefault(iid, Owed(reason, now))

    def owed(self, kind: ProbeKind, iid: str) -> Owed | None:
        return self._owed[kind].get(iid)

    def settle(self, kind: ProbeKind, iid: str) -> Owed | None:
        """The answer has come. None: nothing was owed."""
        return self._owed[kind].pop(iid, None)

    def postpone(self, kind: ProbeKind, iid: str, *, now: float) -> None:
        """The answer told nothing: asked again after the kind's pause."""
        owed = self._owed[kind].get(iid)
        if owed is not None:
            owed.due_at = now + self._pause_s(kind)

    def forget(self, iid: str) -> None:
        for owed in self._owed.values():
            owed.pop(iid, None)

    def due(self, now: float) -> list[tuple[ProbeKind, str, Owed]]:
        """What is to be asked at `now`, health first, by ID; each is due again after its pause."""
        due = [
            (kind, iid, owed)
            for kind, by_engine in self._owed.items()
            for iid, owed in sorted(by_engine.items())
            if owed.due_at <= now
        ]
        for kind, _, owed in due:
            owed.due_at = now + self._pause_s(kind)
            owed.turn += 1
        return due

    def engines(self) -> frozenset[str]:
        """Engines that owe any probe."""
        return frozenset(iid for by_engine in self._owed.values() for iid in by_engine)

    def clear(self) -> None:
        for owed in self._owed.values():
            owed.clear()

    def _pause_s(self, kind: ProbeKind) -> float:
        return self._every_s if kind is ProbeKind.INFERENCE else 0.0


def add_producers(owed: Owed, producers: Iterable[str]) -> None:
    """Each once, in the order in which they failed."""
    owed.producers.extend(one for one in dict.fromkeys(producers) if one not in owed.producers)
