"""Probes that suspects owe, until an answer settles them (failures.md section 3). Pure.

| kind | owed for | asked again |
| --- | --- | --- |
| health | a timeout or overload streak | every pass until settled |
| inference | an inference hold, a timeout streak after its health check | every `every_s` |

| state | event | next |
| --- | --- | --- |
| free | ask | owed and asked |
| free | restored | owed, due at once |
| owed | ask | owed, with more producers |
| owed | due at `now` | owed and asked, due again after its pause: no answer delays, it loses nothing |
| owed | inconclusive | owed, due after its pause |
| owed | settled | free |

Whether a probe of that kind runs already is for whoever runs them: it drops what is asked twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from narwhal.model.effect import ProbeKind, ProbeWanted

Wanted = tuple[ProbeWanted, ...]


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
    """What is owed, one entry an engine and kind."""

    __slots__ = ("_every_s", "_is_out", "_owed")

    def __init__(self, *, every_s: float, is_out: Callable[[str], bool]) -> None:
        """`every_s`: pause between inference probes of one engine. `is_out`: an ejected engine takes no part
        in the probe of another."""
        self._every_s = every_s
        self._is_out = is_out
        self._owed: dict[ProbeKind, dict[str, Owed]] = {ProbeKind.HEALTH: {}, ProbeKind.INFERENCE: {}}

    # --- what is ---------------------------------------------------------------------------------

    def reason(self, kind: ProbeKind, iid: str) -> str:
        """Why the engine owes it, "" where it does not."""
        owed = self._owed[kind].get(iid)
        return owed.reason if owed is not None else ""

    def producers(self, iid: str) -> tuple[str, ...]:
        """Whose transfers an owed inference probe is to cross, "" = a local one; never empty."""
        owed = self._owed[ProbeKind.INFERENCE].get(iid)
        return tuple(owed.producers) if owed is not None and owed.producers else ("",)

    def engines(self) -> frozenset[str]:
        """Engines that owe any probe."""
        return frozenset(iid for by_engine in self._owed.values() for iid in by_engine)

    # --- asking ----------------------------------------------------------------------------------

    def ask(
        self, kind: ProbeKind, iid: str, *, reason: str, producers: Iterable[str] = (), now: float
    ) -> Wanted:
        """Owes a check, and asks for it at once unless it is owed already."""
        new = iid not in self._owed[kind]
        owed = self._owe(kind, iid, reason=reason, now=now)
        _add(owed, producers)
        return self._asked(kind, iid, owed=owed, now=now) if new else ()

    def ask_across(self, iid: str, *, reason: str, consumer: str, now: float) -> Wanted:
        """As `ask`, for an inference probe of a suspect producer: `consumer` is to pull its KV."""
        new = iid not in self._owed[ProbeKind.INFERENCE]
        owed = self._owe(ProbeKind.INFERENCE, iid, reason=reason, now=now)
        owed.consumer = owed.consumer or consumer
        return self._asked(ProbeKind.INFERENCE, iid, owed=owed, now=now) if new else ()

    def ask_alone(self, iid: str, *, reason: str, now: float) -> Wanted:
        """Asks at once for an inference probe of the engine by itself, whatever was owed."""
        owed = self._owe(ProbeKind.INFERENCE, iid, reason=reason, now=now)
        owed.producers, owed.consumer = [""], ""
        return self._asked(ProbeKind.INFERENCE, iid, owed=owed, now=now)

    def restored(
        self, kind: ProbeKind, iid: str, *, reason: str, producers: Iterable[str] = (), now: float
    ) -> None:
        """A suspect of a handoff owes a check that is due at once."""
        _add(self._owe(kind, iid, reason=reason, now=now), producers)

    def then_inference(self, iid: str) -> None:
        """The health check that the engine owes is to be followed by an inference probe."""
        owed = self._owed[ProbeKind.HEALTH].get(iid)
        if owed is not None:
            owed.then_inference = True

    def due(self, now: float) -> Wanted:
        """What is to be asked at `now`, health first, by ID; each is due again after its pause."""
        due = [
            (kind, iid, owed)
            for kind, by_engine in self._owed.items()
            for iid, owed in sorted(by_engine.items())
            if owed.due_at <= now
        ]
        return tuple(
            wanted for kind, iid, owed in due for wanted in self._asked(kind, iid, owed=owed, now=now)
        )

    # --- answers ---------------------------------------------------------------------------------

    def settle(self, kind: ProbeKind, iid: str) -> bool:
        """The answer has come. True: an inference probe is to follow."""
        owed = self._owed[kind].pop(iid, None)
        return owed is not None and owed.then_inference

    def postpone(self, kind: ProbeKind, iid: str, *, now: float) -> None:
        """The answer told nothing about the engine: asked again after the kind's pause."""
        owed = self._owed[kind].get(iid)
        if owed is not None:
            owed.due_at = now + self._pause_s(kind)

    def forget(self, iid: str) -> None:
        for owed in self._owed.values():
            owed.pop(iid, None)

    def clear(self) -> None:
        for owed in self._owed.values():
            owed.clear()

    # --- inside ----------------------------------------------------------------------------------

    def _owe(self, kind: ProbeKind, iid: str, *, reason: str, now: float) -> Owed:
        return self._owed[kind].setdefault(iid, Owed(reason, now))

    def _asked(self, kind: ProbeKind, iid: str, *, owed: Owed, now: float) -> Wanted:
        owed.due_at = now + self._pause_s(kind)
        wanted = self._wanted(kind, iid, owed=owed)
        owed.turn += 1
        return (wanted,)

    def _wanted(self, kind: ProbeKind, iid: str, *, owed: Owed) -> ProbeWanted:
        """Producers that failed the suspect take turns; one that is out does not."""
        if owed.consumer and not self._is_out(owed.consumer):
            return ProbeWanted(kind, iid, consumer=owed.consumer)
        live = [one for one in owed.producers if not one or not self._is_out(one)]
        return ProbeWanted(kind, iid, live[owed.turn % len(live)] if live else "")

    def _pause_s(self, kind: ProbeKind) -> float:
        return self._every_s if kind is ProbeKind.INFERENCE else 0.0


def _add(owed: Owed, producers: Iterable[str]) -> None:
    """Each once, in the order in which they failed."""
    owed.producers.extend(one for one in dict.fromkeys(producers) if one not in owed.producers)
