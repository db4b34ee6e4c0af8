"""Where every engine stands and what moves it: holds, owed checks, ejections, the guard. Pure.

Each act returns its effects: what is to be told, what is to be looked at. Verdicts come from
`narwhal.policy.judgement`; the table of who may take new requests is `narwhal.policy.membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from math import inf

from narwhal.model.effect import NOTHING, Effect, Effects, ProbeKind, ProbeWanted, Told, tell
from narwhal.model.engine import Leg
from narwhal.model.handoff import HandoffDocument
from narwhal.model.standing import HoldKind, HoldView
from narwhal.policy.carried_holds import restore_holds
from narwhal.policy.checks import Checks
from narwhal.policy.ejections import Ejections
from narwhal.policy.holds import Holds
from narwhal.policy.membership import Standing, standing, takes_last
from narwhal.policy.pace import Pace
from narwhal.policy.quarantine import OWN, Cause
from narwhal.policy.returns import Around, Returns

_NOBODY: frozenset[str] = frozenset()


class Standings:
    """`able` maps each leg to the engines that roles and pins permit; the fleet sets it.

    `holding` is for reading. `parting`: who is drained and was not suspected until then. `version` grows
    with every change of who may take new requests, but for quarantines that run out.
    """

    def __init__(self, engines: Iterable[str], *, pace: Pace, together: bool = False) -> None:
        """`pace`: from one inference or readmission probe of an engine to the next. `together`: a fleet
        that lost every engine returns in one change (a contracted one)."""
        self.engines = tuple(sorted(engines))
        self.able: Mapping[Leg, Set[str]] = {}
        self.version = 0
        self.drained, self.barred, self.parting = _NOBODY, _NOBODY, _NOBODY
        self.holding = Holds()
        self.ejections = Ejections(pace=pace)
        self.checks = Checks(pace=pace, is_out=self.is_out)
        around = Around(self.eligible, lambda: self.drained, self._came_back)
        self.returns = Returns(self.ejections, around, together=together)
        self.absolve: Callable[[str, float], Effects] = lambda iid, now: NOTHING
        """Takes from an ejected engine's partners what was its own; set by `policy.blame`."""
        self.after_ejection: Callable[[str], Effects] = lambda iid: NOTHING
        """What an ejection brings for others; told right behind it."""
        self.forget: Callable[[str], None] = lambda iid: None
        """Ends what else is held against an engine that comes back. Set by `policy.judgement`."""
        self.require_wave: Callable[[str], Effects] = lambda why: NOTHING
        """Holds the whole fleet until a wave is completed. Set by `policy.upkeep`, as `after_ejection` is."""
        self._unverified: set[str] = set()
        self._spared: dict[tuple[str, HoldKind], float] = {}
        """Engines that the guard kept from a hold, told already: until when that hold would have lasted."""
        self._eligible: frozenset[str] = frozenset()
        self._eligible_version = -1
        self._eligible_until = -inf

    # --- what is ---------------------------------------------------------------------------------

    def of(self, iid: str, now: float) -> Standing:
        return standing(
            ejected=iid in self.ejections,
            hold=self.holding.on(iid, now),
            unverified=iid in self._unverified or iid in self.barred,
            drained=iid in self.drained,
        )

    def eligible(self, now: float) -> frozenset[str]:
        """Who may take new requests at `now`. Kept until it changes: an engine that dies fails thousands of
        legs at once, and each asks."""
        if self.version != self._eligible_version or now >= self._eligible_until:
            well = (iid for iid in self.engines if self.of(iid, now) is Standing.ELIGIBLE)
            self._eligible = frozenset(well)
            self._eligible_version, self._eligible_until = self.version, self.next_change(now)
        return self._eligible

    def next_change(self, now: float) -> float:
        """When `eligible` changes by itself; inf: it does not."""
        return self.holding.next_end(now)

    def is_ejected(self, iid: str) -> bool:
        return iid in self.ejections

    def is_out(self, iid: str) -> bool:
        """Ejected or drained: nobody uses it, and what it shows meanwhile moves nothing."""
        return iid in self.ejections or iid in self.drained

    def is_aside(self, iid: str) -> bool:
        """Out, or held until a probe decides: what fails on it tells nothing of its partners. A probe that
        tells nothing decides nothing, and a partner whose fault it is would stay in for as long."""
        return self.is_out(iid) or (self.holding.is_held(iid) and not self.checks.told_nothing(iid))

    def sound(self, iids: Iterable[str]) -> frozenset[str]:
        """Those that are neither ejected nor owe a health check, drained or not."""
        return frozenset(iid for iid in iids if iid not in self.ejections and iid not in self._unverified)

    def ejected(self) -> tuple[str, ...]:
        """Sorted."""
        return self.ejections.engines()

    def holds(self, now: float) -> Mapping[str, HoldView]:
        """Engine ID to its hold, sorted by ID."""
        return self.holding.view(now)

    def unverified(self) -> tuple[str, ...]:
        """Who owes a good health check after a cautious takeover, sorted."""
        return tuple(sorted(self._unverified))

    def verifying(self) -> tuple[str, ...]:
        """Who owes any check, sorted."""
        return tuple(sorted(self.checks.engines() | self._unverified | self.barred))

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: float) -> Effects:
        """What time brings: quarantines that ended, probes that are due."""
        ended = [
            _ended(iid, HoldKind.QUARANTINE, reason="its time is over") for iid in self.holding.expired(now)
        ]
        wanted = [ProbeWanted(ProbeKind.HEALTH, iid) for iid in self.unverified()]
        wanted += self.checks.due(now)
        # While nobody may serve there is no peer to prove a transfer with.
        due = () if self.barred else self.ejections.due(now)
        wanted += [ProbeWanted(ProbeKind.READMISSION, iid) for iid in due]
        looked_at = [one for one in wanted if one.iid not in self.drained]
        return (*ended, *self.returns.due(now), *looked_at)

    # --- acts ------------------------------------------------------------------------------------

    def set_drained(self, drained: frozenset[str]) -> Effects:
        """Who is out by an operator's word, all of them. Who went owes nothing and has no hold any more; an
        ejection stays and ends with the readmission."""
        gone, self.drained = sorted(drained - self.drained), drained
        held = {iid for iid in gone if self.holding.is_held(iid)}
        self.parting = drained & self.parting.union(gone).difference(held, self.barred)
        self.version += 1
        for iid in gone:
            self.checks.forget(iid)
        return tuple(effect for iid in gone for effect in self.free(iid, reason="it is drained"))

    def reinstate(self, iid: str) -> Effects:
        """A drained engine passed every check of an operator's readmission: no ejection is left either."""
        self.ejections.drop(iid)
        self._unverified.discard(iid)
        self.version += 1
        self.forget(iid)
        reason = "every check passed; it was drained by an operator"
        return (tell("readmission", iid, reason=reason),)

    def require_checks(self) -> None:
        """Every engine owes a good health check before it is used."""
        self._unverified = set(self.engines)
        self.version += 1

    def verified(self, iid: str) -> None:
        """The engine answered a health check with 200."""
        if iid in self._unverified:
            self._unverified.discard(iid)
            self.version += 1

    def quarantine(self, iid: str, until: float, *, reason: str, now: float, cause: Cause = OWN) -> Effects:
        """No new requests until then, unless the engine is the last of its kind."""
        if self._needed(iid, now):
            return self._withheld(iid, HoldKind.QUARANTINE, reason=reason, times=(now, until))
        if not self.holding.quarantine(iid, until, reason=reason, now=now, cause=cause):
            return NOTHING
        self.version += 1
        return (tell("hold", iid, reason=reason, hold=HoldKind.QUARANTINE.value),)

    def hold(self, iid: str, reason: str, *, now: float, of_clients: bool = False) -> Effects:
        """No new requests until an inference probe decides, unless the engine is the last of its kind.
        `of_clients`: for what may be their doing, so it counts as no relapse."""
        if self._needed(iid, now):
            return self._withheld(iid, HoldKind.INFERENCE, reason=reason, times=(now, inf))
        if self.holding.is_held(iid):
            if not of_clients:
                self.checks.relapses.accuse(iid)
            return NOTHING
        reason += self.checks.held(iid, now=now, of_clients=of_clients)
        self.holding.hold(iid, reason)
        self.version += 1
        return (tell("hold", iid, reason=reason, hold=HoldKind.INFERENCE.value),)

    def end(self, iid: str, kind: HoldKind, *, reason: str) -> Effects:
        """Ends a hold early; without one: nothing."""
        self._spared.pop((iid, kind), None)
        if not self.holding.end(iid, kind):
            return NOTHING
        if kind is HoldKind.INFERENCE:
            self.checks.freed(iid)
        self.version += 1
        return (_ended(iid, kind, reason=reason),)

    def free(self, iid: str, *, reason: str) -> Effects:
        """Ends every hold early."""
        return tuple(effect for kind in HoldKind for effect in self.end(iid, kind, reason=reason))

    def proved(self, iid: str, now: float) -> Effects:
        """Its inference probe was good."""
        if self.holding.is_held(iid):
            self.checks.relapses.freed(iid, now)
        return self.free(iid, reason="an inference probe was good")

    def eject(self, iid: str, reason: str, *, now: float) -> Effects:
        """Out until it is readmitted. For confirmed failures, also of the last engine. Drained ones are out.

        Who is held and could take its part now is not held any longer; the probe that it owes stays owed.
        """
        if iid not in self.engines or iid in self.drained or not self.ejections.eject(iid, reason, now=now):
            return NOTHING
        self.version += 1
        self.checks.forget(iid)
        ended = self.free(iid, reason="it is ejected")
        told = tell("ejection", iid, reason=reason)
        return (*ended, told, *self._needed_now(now), *self.absolve(iid, now), *self.after_ejection(iid))

    def evict(self, iid: str, reason: str, *, now: float) -> Effects:
        """An ejection that drift asks for: never of the last engine of its kind."""
        if iid in self.ejections or not self._needed(iid, now):
            return self.eject(iid, f"decode drift: {reason}", now=now)
        reason = f"no ejection for decode drift, since no other engine can take its part: {reason}"
        return (tell("ejection", iid, reason=reason, enforced=False),)

    # --- what travels ----------------------------------------------------------------------------

    def restore(self, document: HandoffDocument, now: float) -> None:
        """Replaces everything by what a handoff tells of our engines, times re-anchored to `now`.

        Suspects are probed, not trusted: who was out is looked at once, a hold's probe is due at once. Set
        `able` before.
        """
        self.checks.clear()
        self.holding.clear()
        out = frozenset(self.engines).intersection(document.ejected)
        self.ejections.restore(out, document.ejections, now=now)
        unverified, self._unverified, self.barred = self._unverified, set(), _NOBODY
        self.version += 1
        restore_holds(self, document, now=now)
        # Nobody was told of what the guard withheld here.
        self._spared.clear()
        self._unverified = unverified
        self.version += 1

    # --- inside ----------------------------------------------------------------------------------

    def _came_back(self, engines: Iterable[str]) -> None:
        """They were out and passed every readmission check."""
        self.version += 1
        self._unverified.difference_update(engines)
        for iid in engines:
            self.checks.forget(iid)
            self.forget(iid)

    def _needed(self, iid: str, now: float) -> bool:
        """A leg would lose its last engine by a hold, or there is none to hold: it is drained."""
        return iid in self.drained or takes_last(iid, able=self.able, eligible=self.eligible(now))

    def _needed_now(self, now: float) -> Effects:
        """A hold never takes the last engine, in whatever order the others went."""
        effects: list[Effect] = []
        for iid in self.holding.view(now):
            if self._needed(iid, now):
                effects += self.free(iid, reason="no other engine can take its part any more")
        return tuple(effects)

    def _withheld(self, iid: str, kind: HoldKind, *, reason: str, times: tuple[float, float]) -> Effects:
        """`times`: now, and when the hold would end."""
        if times[0] < self._spared.get((iid, kind), -inf) or iid in self.drained:
            return NOTHING
        self._spared[iid, kind] = times[1]
        reason = f"no hold, for no other engine can take its part: {reason}"
        return (tell("hold", iid, reason=reason, enforced=False, hold=kind.value),)


def _ended(iid: str, kind: HoldKind, *, reason: str) -> Told:
    return tell("hold_ended", iid, reason=reason, hold=kind.value)
