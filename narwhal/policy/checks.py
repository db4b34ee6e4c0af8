"""Probes that suspects owe, until an answer settles them (failures.md section 3). Pure.

| kind | owed for | asked again |
| --- | --- | --- |
| health | a timeout or overload streak | every pass until settled |
| inference | an inference hold, a timeout streak after its health check | at the pace of probes |

| state | event | next |
| --- | --- | --- |
| free | ask | owed and asked |
| free | restored | owed, due at once |
| owed | ask | owed, with more producers |
| owed across an edge | a good local probe, as one begun before | owed and asked: it proves no transfer |
| owed with a consumer that is out | asked again | with another one, which alone proves a transfer |
| owed | due at `now` | owed and asked, due again after its pause: no answer delays, it loses nothing |
| owed | inconclusive | owed, due after its pause |
| owed | settled | free |
| owed | renewed: newer evidence | owed; a good answer to an earlier asking is stale |
| owed | stale answer | owed and asked at once |
| any, inference | the engine is held after a relapse (`relapses`) | what is owed is asked after its rest |
| resting | the hold ends | owed, due at once |
| free, owed anew | an answer to an asking of a time before | stale, good or bad |

An answer names its asking by number. A bad one to any asking since the check is owed counts: the suspicion
was not settled in between. An answer that nobody asked for was seen just now, and counts.
Whether a probe of that kind runs already is for whoever runs them: it drops what is asked twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import inf

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import HealthProbed, InferenceProbed, ProbeOutcome
from narwhal.policy.pace import Pace
from narwhal.policy.relapses import Relapses

Wanted = tuple[ProbeWanted, ...]


@dataclass(slots=True)
class Owed:
    """One probe that is owed. `producers`: whose transfers failed, "" = local, for an inference probe.

    `consumer`: who is to pull the engine's own KV, for a suspect producer; it goes before `producers`.
    `then_inference`: once a health check passed, an inference probe without a hold is owed too.
    `since`: the number of the last asking before it was owed; `renewed`: before its newest evidence.
    """

    reason: str
    due_at: float
    since: int
    renewed: int
    producers: list[str] = field(default_factory=list)
    consumer: str = ""
    then_inference: bool = False
    turn: int = 0
    told_nothing: bool = False
    """Its last answer was inconclusive."""
    failed: list[str] = field(default_factory=list)
    """Producers across whom its probe failed, while it is owed."""


class Checks:
    """What is owed, one entry an engine and kind."""

    __slots__ = ("_is_out", "_number", "_owed", "_pace", "_rests", "relapses", "stand_in")

    def __init__(self, *, pace: Pace, is_out: Callable[[str], bool]) -> None:
        """`pace`: from one inference probe of an engine to the next. `is_out`: an ejected engine takes no
        part in the probe of another."""
        self._pace = pace
        self._is_out = is_out
        self._number = 0
        self._rests: dict[str, float] = {}
        """Held engine to when its inference probe may be asked."""
        self.relapses = Relapses()
        self.stand_in: Callable[[str, float], str] = lambda iid, now: ""
        """Who is to pull its KV where the consumer that was named is out, "" = nobody can; set by `pairs`."""
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

    def consumer(self, iid: str) -> str:
        """Who is to pull its KV in an owed inference probe, "" where nobody is named."""
        owed = self._owed[ProbeKind.INFERENCE].get(iid)
        return owed.consumer if owed is not None else ""

    def told_nothing(self, iid: str) -> bool:
        """It owes an inference probe of which the last answer was inconclusive."""
        owed = self._owed[ProbeKind.INFERENCE].get(iid)
        return owed is not None and owed.told_nothing

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
        if _add(owed, producers):
            owed.renewed = self._number
        return self._asked(kind, iid, owed=owed, now=now) if new else ()

    def ask_across(self, iid: str, *, reason: str, consumer: str, now: float) -> Wanted:
        """As `ask`, for an inference probe of a suspect producer: `consumer` is to pull its KV."""
        new = iid not in self._owed[ProbeKind.INFERENCE]
        owed = self._owe(ProbeKind.INFERENCE, iid, reason=reason, now=now)
        if not owed.consumer or self._is_out(owed.consumer):
            owed.consumer, owed.renewed = consumer, self._number
        return self._asked(ProbeKind.INFERENCE, iid, owed=owed, now=now) if new else ()

    def ask_from(self, iid: str, *, reason: str, producers: Iterable[str], now: float) -> Wanted:
        """Asks at once for an inference probe that pulls from these in turn, whatever was owed."""
        owed = self._owe(ProbeKind.INFERENCE, iid, reason=reason, now=now)
        owed.producers, owed.consumer, owed.turn = list(producers), "", 0
        owed.renewed = self._number
        return self._asked(ProbeKind.INFERENCE, iid, owed=owed, now=now)

    def ask_with(self, iid: str, *, reason: str, consumer: str, now: float) -> Wanted:
        """Asks at once for an inference probe in which `consumer` pulls its KV, whatever was owed."""
        owed = self._owe(ProbeKind.INFERENCE, iid, reason=reason, now=now)
        owed.consumer, owed.renewed = consumer, self._number
        return self._asked(ProbeKind.INFERENCE, iid, owed=owed, now=now)

    def ask_alone(self, iid: str, *, reason: str, now: float) -> Wanted:
        """Asks at once for an inference probe of the engine by itself, whatever was owed."""
        owed = self._owe(ProbeKind.INFERENCE, iid, reason=reason, now=now)
        owed.producers, owed.consumer, owed.renewed = [""], "", self._number
        return self._asked(ProbeKind.INFERENCE, iid, owed=owed, now=now)

    def restored(
        self, kind: ProbeKind, iid: str, *, reason: str, producers: Iterable[str] = (), now: float
    ) -> None:
        """A suspect of a handoff owes a check that is due at once."""
        _add(self._owe(kind, iid, reason=reason, now=now), producers)

    def across(self, iid: str, consumer: str) -> None:
        """The inference probe that it owes is of a suspect producer: `consumer` is to pull its KV."""
        owed = self._owed[ProbeKind.INFERENCE].get(iid)
        if owed is not None and consumer != iid:
            owed.consumer = consumer

    def then_inference(self, iid: str) -> None:
        """The health check that the engine owes is to be followed by an inference probe."""
        owed = self._owed[ProbeKind.HEALTH].get(iid)
        if owed is not None:
            owed.then_inference = True

    def renew(self, kind: ProbeKind, iid: str) -> None:
        """There is new evidence: a good answer to what was asked before does not settle it."""
        owed = self._owed[kind].get(iid)
        if owed is not None:
            owed.renewed = self._number

    def held(self, iid: str, *, now: float, of_clients: bool = False) -> str:
        """An inference hold begins: a good answer to what was asked before does not end it. What is to be
        said of a rest, "" where its probe may be asked at once. `of_clients`: for what they asked, which
        refutes no probe."""
        self.renew(ProbeKind.INFERENCE, iid)
        if of_clients:
            self.relapses.excuse(iid)
            return ""
        turns = self.relapses.held(iid, now)
        if not turns:
            return ""
        self._rests[iid] = self._pace.after(now, turns=turns)
        rest_s = turns * self._pace.every_s
        return f"; its last good probe was refuted, so the next one waits {rest_s:g} s"

    def freed(self, iid: str) -> None:
        """The inference hold is over; a probe that is owed yet rests no longer."""
        self.relapses.accuse(iid)
        owed = self._owed[ProbeKind.INFERENCE].get(iid)
        if self._rests.pop(iid, None) is not None and owed is not None:
            owed.due_at = -inf

    def again(self, kind: ProbeKind, iid: str, *, now: float) -> Wanted:
        """Asks at once for what is owed; nothing where nothing is."""
        owed = self._owed[kind].get(iid)
        return self._asked(kind, iid, owed=owed, now=now) if owed is not None else ()

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

    def is_stale(self, kind: ProbeKind, evidence: HealthProbed | InferenceProbed) -> bool:
        """The answer is to an asking before what is owed now, or nothing is owed any more."""
        if not evidence.number or evidence.outcome is ProbeOutcome.INCONCLUSIVE:
            return False
        owed = self._owed[kind].get(evidence.iid)
        if owed is None:
            return True
        bad = evidence.outcome is ProbeOutcome.BAD
        return evidence.number <= (owed.since if bad else owed.renewed)

    def is_answer(self, iid: str, *, peer: str, consumer: str) -> bool:
        """A good inference probe across `peer`, or with `consumer`, shows what is owed."""
        owed = self._owed[ProbeKind.INFERENCE].get(iid)
        if owed is None or consumer:
            return True
        wanted = self._wanted(ProbeKind.INFERENCE, iid, owed=owed)
        return not wanted.consumer and (bool(peer) or not self._live(owed))

    def failed_across(self, iid: str, producer: str) -> tuple[str, ...]:
        """Notes a bad probe across; the producers of all of them while the probe is owed."""
        owed = self._owed[ProbeKind.INFERENCE].get(iid)
        if owed is None:
            return (producer,)
        _note(owed.failed, producer)
        return tuple(owed.failed)

    def settle(self, kind: ProbeKind, iid: str) -> bool:
        """The answer has come. True: an inference probe is to follow."""
        owed = self._owed[kind].pop(iid, None)
        return owed is not None and owed.then_inference

    def postpone(self, kind: ProbeKind, iid: str, *, now: float) -> None:
        """The answer told nothing about the engine: asked again after the kind's pause."""
        owed = self._owed[kind].get(iid)
        if owed is not None:
            owed.due_at = self._next(kind, now)
            owed.told_nothing = True

    def forget(self, iid: str) -> None:
        self.relapses.forget(iid)
        self._rests.pop(iid, None)
        for owed in self._owed.values():
            owed.pop(iid, None)

    def clear(self) -> None:
        self.relapses.clear()
        self._rests.clear()
        for owed in self._owed.values():
            owed.clear()

    # --- inside ----------------------------------------------------------------------------------

    def _owe(self, kind: ProbeKind, iid: str, *, reason: str, now: float) -> Owed:
        return self._owed[kind].setdefault(iid, Owed(reason, now, self._number, self._number))

    def _asked(self, kind: ProbeKind, iid: str, *, owed: Owed, now: float) -> Wanted:
        rest = self._rests.get(iid, -inf)
        if kind is ProbeKind.INFERENCE and now < rest:
            owed.due_at = rest
            return ()
        owed.due_at = self._next(kind, now)
        if owed.consumer and self._is_out(owed.consumer):
            owed.consumer = self.stand_in(iid, now)
        wanted = self._wanted(kind, iid, owed=owed)
        owed.turn += 1
        self._number += 1
        return (replace(wanted, number=self._number),)

    def _wanted(self, kind: ProbeKind, iid: str, *, owed: Owed) -> ProbeWanted:
        """Producers that failed the suspect take turns; one that is out does not."""
        if owed.consumer and not self._is_out(owed.consumer):
            return ProbeWanted(kind, iid, consumer=owed.consumer)
        live = [one for one in owed.producers if not one or not self._is_out(one)]
        return ProbeWanted(kind, iid, live[owed.turn % len(live)] if live else "")

    def _live(self, owed: Owed) -> list[str]:
        """Producers that an across-probe can still pull from."""
        return [one for one in owed.producers if one and not self._is_out(one)]

    def _next(self, kind: ProbeKind, now: float) -> float:
        """A health check is due again in the next pass."""
        return self._pace.after(now) if kind is ProbeKind.INFERENCE else now


def _note(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _add(owed: Owed, producers: Iterable[str]) -> bool:
    """Each once, in the order in which they failed. False: all were there."""
    new = [one for one in dict.fromkeys(producers) if one not in owed.producers]
    owed.producers.extend(new)
    return bool(new)
