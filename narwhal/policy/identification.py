"""Which process every engine of a contracted fleet is, and whether that one was accepted. Pure.

| engine | event | next |
| --- | --- | --- |
| owed | like the contract | settled, its process accepted |
| owed, never accepted or with `whole_wave` | no answer | owed; asked again in the next pass |
| owed, never accepted, restarts are individual | `WAIT_S` since the first one was settled | ejected |
| accepted | like, the same process | accepted |
| accepted | like, another process | accepted anew; with `whole_wave` ejected |
| accepted from a handoff | the first look finds another process | the whole fleet waits for a wave |
| accepted before a start without `--resume` | any | as if never accepted; its process can be read |
| accepted | no answer, `recovery.liveness_misses` times in a row | ejected |
| accepted | the same of its sidecar alone; the accepted process runs | ejected, if others take its part |
| owed, accepted | unlike | ejected, with the field's name |
| out, every check passed | | its process accepted |
| out | anything else | nothing: the readmission checks look for themselves |

Where an identity is owed, nobody takes requests until all are settled: at a start, and after a takeover whose
document is old (cluster.md section 6). An engine that is out owes none. An answer names its asking by number:
one from before the last acceptance tells of a process that is gone. Without a contract nothing is owed, and
what readmissions accepted is all that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from narwhal.errors import InvariantViolation
from narwhal.model.effect import NOTHING, Effects, ProbeKind, ProbeWanted, Told, tell
from narwhal.model.evidence import (
    Evidence,
    Identified,
    IdentityOutcome,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.identity import SAME_START_S
from narwhal.model.numbers import unix_time
from narwhal.model.settings import FleetConfig
from narwhal.policy.ejections import WAIT_S
from narwhal.policy.membership import takes_last
from narwhal.policy.readmission import FAILED
from narwhal.policy.standings import Standings

WHOLE_WAVE: Final = "whole_wave"
"""`recovery.engine_restart_policy`."""


def read_starts(told: object) -> dict[str, float]:
    """`process_starts` of a handoff; what is no time is left out."""
    rows = told.items() if isinstance(told, Mapping) else ()
    times = ((str(iid), unix_time(start)) for iid, start in rows)
    return {iid: start for iid, start in times if start is not None}


_UNATTESTED = "unattested"


class ProcessStarts:
    """Engine ID to the process that was accepted last, Unix seconds; configured engines only.

    `asked` numbers what engines were asked for: an answer from before an acceptance tells of a process that
    may be gone. `uncompared`: whose process a router accepted before it was started without `--resume`. It is
    kept to be read, and nobody is judged by it.
    """

    __slots__ = ("_engines", "_since", "_starts", "asked", "uncompared")

    def __init__(self, engines: Iterable[str]) -> None:
        self._engines = frozenset(engines)
        self._starts: dict[str, float] = {}
        self._since: dict[str, int] = {}
        self.asked = 0
        self.uncompared: frozenset[str] = frozenset()

    def of(self, iid: str) -> float | None:
        """What its process is judged by; None: nothing."""
        return None if iid in self.uncompared else self._starts.get(iid)

    def last(self, iid: str) -> float | None:
        """As `of`, those too that nobody is judged by."""
        return self._starts.get(iid)

    def accept(self, iid: str, start: float) -> None:
        self._starts[iid] = start
        self.uncompared -= {iid}
        self._since[iid] = self.asked

    def is_stale(self, iid: str, number: int) -> bool:
        """0: nobody asked, it was seen just now."""
        return 0 < number <= self._since.get(iid, 0)

    def export(self) -> dict[str, float]:
        """Sorted by ID."""
        return dict(sorted(self._starts.items()))

    def restore(self, told: object, *, uncompared: Iterable[str] = ()) -> None:
        """Replaces everything by what a handoff tells; what was asked before it is stale."""
        self._since = dict.fromkeys(self._engines, self.asked)
        self._starts = {iid: start for iid, start in read_starts(told).items() if iid in self._engines}
        self.uncompared = frozenset(self._starts).intersection(uncompared)


@dataclass(frozen=True, slots=True)
class IdentityRules:
    """`contracted`: the fleet has an engine contract. `whole_wave`: no engine restarts by itself.
    `misses`: looks without an answer that eject an accepted engine."""

    contracted: bool
    whole_wave: bool
    misses: int

    @classmethod
    def by(cls, settings: FleetConfig) -> Self:
        recovery = settings.recovery
        whole_wave = recovery.engine_restart_policy == WHOLE_WAVE
        return cls(settings.contract is not None, whole_wave, recovery.liveness_misses)


class Identification:
    """Of the engines that `standings` has; `starts` is shared with whoever else accepts a process."""

    def __init__(self, standings: Standings, starts: ProcessStarts, *, rules: IdentityRules) -> None:
        self.starts = starts
        self._standings = standings
        self._rules = rules
        self._misses: dict[str, int] = {}
        self._silence: dict[str, str] = {}
        """What an engine last said instead of an identity; told when it changes."""
        self._owed: set[str] = set(standings.engines) if rules.contracted else set()
        self._first_at: float | None = None
        """Since when one of the others is settled."""
        self._carried: dict[str, float] = {}
        """Processes that another owner accepted, and this one has not seen."""
        self._unasked: set[str] = set()
        self._untold: Effects = NOTHING
        self._bar()

    # --- what is ---------------------------------------------------------------------------------

    def owing(self) -> tuple[str, ...]:
        """Whose identity is awaited, sorted; nobody takes requests meanwhile."""
        return tuple(sorted(self._owed))

    def awaited(self) -> dict[str, str]:
        """Why by engine, sorted."""
        return {iid: self._silence.get(iid, "it was not asked yet") for iid in self.owing()}

    @property
    def contracted(self) -> bool:
        return self._rules.contracted

    @property
    def awaiting(self) -> bool:
        return bool(self._owed)

    # --- events ----------------------------------------------------------------------------------

    def step(self, evidence: Evidence, now: float) -> Effects:
        if not self._rules.contracted:
            return NOTHING
        match evidence:
            case Identified():
                return self._identified(evidence, now)
            case LivenessSwept(iid=iid, outcome=ProbeOutcome.GOOD):
                return self._ask([iid])
            case Validated():
                self._validated(evidence)
        return NOTHING

    def tick(self, now: float) -> Effects:
        """Once a pass: whom to ask, and who has been waited for long enough."""
        untold, self._untold = self._untold, NOTHING
        if not self._rules.contracted:
            return untold
        effects = list(untold)
        if self._first_at is not None and now >= self._first_at + WAIT_S and not self._rules.whole_wave:
            for iid in self.owing():
                why = self._silence.get(iid, "it gave no answer")
                effects += self._fail(
                    iid, f"not verified {WAIT_S:g} s after the first engine: {why}", now=now
                )
        self._settle()
        asked, self._unasked = self._unasked | self._owed, set()
        return (*effects, *self._ask(sorted(asked)))

    # --- what travels ----------------------------------------------------------------------------

    def tell_later(self, effects: Effects) -> None:
        """What an opening brought, when nobody could be told of it yet."""
        self._untold = effects

    def export(self) -> dict[str, Any]:
        """Its fields of the handoff's `lifecycle`; those whose identity is awaited are not available."""
        told: dict[str, Any] = {"process_starts": self.starts.export()}
        if self.starts.uncompared:
            told["uncompared_starts"] = sorted(self.starts.uncompared)
        return told | ({"awaiting_identity": list(self.owing())} if self._rules.contracted else {})

    def restore(self, lifecycle: Mapping[str, Any], now: float, *, verify: bool, compare: bool) -> None:
        """Takes the accepted processes from a handoff, after the standings and drains of it.

        `verify`: every engine owes its identity anew. `compare`: the accepted processes still count, at a
        resume and a takeover; a start without `--resume` keeps them and accepts anew what the contract wants.
        """
        starts = lifecycle.get("process_starts")
        if not self._rules.contracted:
            self.starts.restore(starts)
            return
        told = lifecycle.get("uncompared_starts")
        before = [iid for iid in told if isinstance(iid, str)] if isinstance(told, list | tuple) else []
        self.starts.restore(starts, uncompared=before if compare else self._standings.engines)
        available = {iid for iid in self._standings.engines if not self._standings.is_out(iid)}
        self._carried = {iid: start for iid in available if (start := self.starts.of(iid)) is not None}
        self._owed = available if verify else available - self._carried.keys()
        self._unasked = set(self._carried)
        self._first_at = now if available - self._owed else None
        self._misses.clear()
        self._silence.clear()
        self._bar()

    def check_invariants(self) -> None:
        """Raises InvariantViolation where somebody could serve before every identity is settled."""
        barred = frozenset(self._standings.engines if self._owed else ())
        if self._standings.barred != barred:
            raise InvariantViolation(
                f"identities of {self.owing()} are owed, barred: {self._standings.barred}"
            )

    # --- inside ----------------------------------------------------------------------------------

    def _ask(self, engines: Iterable[str]) -> Effects:
        asked = [iid for iid in engines if iid in self._standings.engines and not self._standings.is_out(iid)]
        if not asked:
            return NOTHING
        self.starts.asked += 1
        return tuple(ProbeWanted(ProbeKind.IDENTITY, iid, number=self.starts.asked) for iid in asked)

    def _identified(self, evidence: Identified, now: float) -> Effects:
        iid = evidence.iid
        if iid not in self._standings.engines or self._standings.is_out(iid):
            return NOTHING
        if self.starts.is_stale(iid, evidence.number):
            return NOTHING
        match evidence.outcome:
            case IdentityOutcome.SILENT | IdentityOutcome.UNLIKE if self._is_another(
                iid, evidence.process_start, carried=True
            ):
                return self._differs(iid, evidence.process_start, detail=evidence.detail)
            case IdentityOutcome.SILENT:
                return self._silent(evidence, now)
            case IdentityOutcome.UNLIKE:
                return self._fail(iid, evidence.detail, now=now)
            case IdentityOutcome.LIKE if evidence.process_start is not None:
                return self._like(iid, evidence.process_start, now=now)
        return NOTHING

    def _like(self, iid: str, start: float, *, now: float) -> Effects:
        before = self.starts.last(iid)
        if self._is_another(iid, start, carried=True):
            return self._differs(iid, start)
        if self._is_another(iid, start) and self._rules.whole_wave:
            why = self._started(iid, start)
            return self._fail(
                iid, f"{why}; engine_restart_policy whole_wave lets no engine restart alone", now=now
            )
        self._accept(iid, start)
        if self._first_at is None:
            self._first_at = now
        self._settle()
        if before is None or not _are_two(before, start):
            return NOTHING
        reason = f"it is as the contract wants, and started at {start!r} (before: {before!r})"
        return (tell("process_accepted", iid, reason=reason),)

    def _is_another(self, iid: str, start: float | None, *, carried: bool = False) -> bool:
        """Than the one that was accepted. `carried`: by another owner."""
        before = self.starts.of(iid)
        if before is None or start is None or (carried and self._carried.get(iid) != before):
            return False
        return _are_two(before, start)

    def _started(self, iid: str, start: float | None) -> str:
        return f"its process started at {start!r}, accepted is {self.starts.of(iid)!r}"

    def _differs(self, iid: str, start: float | None, *, detail: str = "") -> Effects:
        """What the owner before accepted is not what runs: nobody knows what happened in between.

        Clients see why a fleet is held; what exactly was seen is for the journal."""
        why = self._started(iid, start) + (f"; {detail}" if detail else "")
        self._forget(iid)
        held = self._standings.require_wave(f"{iid} is not as it was accepted: its process is another one")
        self._settle()
        return (tell("identity_failed", iid, reason=why), *held)

    def _accept(self, iid: str, start: float) -> None:
        self.starts.accept(iid, start)
        self._forget(iid)

    def _forget(self, iid: str) -> None:
        self._owed.discard(iid)
        self._carried.pop(iid, None)
        self._misses.pop(iid, None)
        self._silence.pop(iid, None)

    def _silent(self, evidence: Identified, now: float) -> Effects:
        iid, detail, accepted = evidence.iid, evidence.detail, self.starts.of(evidence.iid)
        if accepted is None or (iid in self._owed and self._rules.whole_wave):
            return self._told_once(tell("identity_awaited", iid, reason=detail), detail)
        self._misses[iid] = misses = self._misses.get(iid, 0) + 1
        if misses < self._rules.misses:
            return NOTHING
        why = f"not verified {misses} times in a row, last: {detail}"
        if evidence.process_start is None or self._is_another(iid, evidence.process_start):
            return self._fail(iid, why, now=now)
        return self._unattested(iid, why, now=now)

    def _unattested(self, iid: str, why: str, *, now: float) -> Effects:
        """The accepted process runs, and its sidecar has gone: that is no reason to serve nobody."""
        eligible = self._standings.eligible(now)
        last = iid in eligible and takes_last(iid, able=self._standings.able, eligible=eligible)
        if not (last or self._rules.whole_wave):
            return self._fail(iid, why, now=now)
        reason = f"no ejection, for the accepted process runs and no other engine can take its part: {why}"
        return self._told_once(tell("identity_failed", iid, reason=reason, enforced=False), _UNATTESTED)

    def _told_once(self, told: Told, what: str) -> Effects:
        iid = str(told.fields["iid"])
        if self._silence.get(iid) == what:
            return NOTHING
        self._silence[iid] = what
        return (told,)

    def _fail(self, iid: str, why: str, *, now: float) -> Effects:
        """An identity failure: the engine is out, and its readmission validates everything."""
        self._forget(iid)
        failed = tell("identity_failed", iid, reason=why)
        ejected = self._standings.eject(iid, f"identity: {why}", now=now)
        self._settle()
        return (failed, *ejected)

    def _validated(self, told: Validated) -> None:
        """An ejected engine passed every check: the process that did is the accepted one."""
        failed = not told.checks or any(check.outcome == FAILED for check in told.checks)
        if failed or not told.conclusive or told.process_start is None:
            return
        if told.iid in self._standings.engines and told.iid not in self._standings.drained:
            self._accept(told.iid, told.process_start)

    def _settle(self) -> None:
        """Whoever went out owes nothing any more."""
        self._owed = {iid for iid in self._owed if not self._standings.is_out(iid)}
        self._bar()

    def _bar(self) -> None:
        barred = frozenset(self._standings.engines if self._owed else ())
        if barred != self._standings.barred:
            self._standings.barred = barred
            self._standings.version += 1


def _are_two(before: float, start: float) -> bool:
    """Process starts of two processes."""
    return abs(start - before) > SAME_START_S
