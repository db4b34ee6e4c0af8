"""The one owner of engine state: roles, pins, what is resident where, who may serve. Pure.

Composes the machines of this package and holds no thresholds: evidence goes to `blame` and from there to
`judgement`, which engines may take new requests says `standings`, which of them to prefer `preference`; what
is resident stands in `accounts`.

| event | effect |
| --- | --- |
| reserve_prefill, reserve_decode | chooses and reserves in one step: resident + 1, work added |
| reserve_decode, nobody takes new work | what a drain found in hand is finished (`Upkeep.finishing`) |
| release | resident - 1, work taken back; again: nothing |
| step, tick | what evidence and time bring: effects, and the candidates anew if membership changed |
| restore | roles of unpinned engines from a handoff document; resident work is this router's own |
| restore, cautious | and every engine owes a good health check |
| restore, verify | and every engine of a contracted fleet owes its identity |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from operator import attrgetter

from narwhal.model.effect import Effect
from narwhal.model.engine import EngineProfile, Leg, Role
from narwhal.model.evidence import Evidence, LegFailed
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument
from narwhal.model.pair_view import EdgeView, HeldKv
from narwhal.model.placement import Demand, Reservation, Resident
from narwhal.model.settings import FleetConfig
from narwhal.model.standing import StandingView
from narwhal.policy.accounts import Accounts
from narwhal.policy.blame import Blame
from narwhal.policy.cost import EngineLoad
from narwhal.policy.demand import Risk
from narwhal.policy.identification import Identification, IdentityRules, ProcessStarts
from narwhal.policy.judgement import Judgement
from narwhal.policy.offer import Offer, make_offer
from narwhal.policy.outage import Outage
from narwhal.policy.pacing import Pacing
from narwhal.policy.placement import least_prefill_work
from narwhal.policy.preference import without
from narwhal.policy.resume import FleetLikeness
from narwhal.policy.roles import EngineSight
from narwhal.policy.split import Split
from narwhal.policy.travel import TAKEOVER, Machines, Opening, Travel
from narwhal.policy.troubles import Troubles
from narwhal.policy.upkeep import Upkeep

FIRST_TOKEN_MISSED = "stream:first_token"
"""The way (policy/faults.py) of a leg whose first token did not come in time."""

_NOBODY: frozenset[str] = frozenset()


class Fleet:
    """Engine state of one router: the engines of `settings`.

    `profiles` maps engine ID to its measured profile; unless every engine has one, all are neutral
    (least resident work) and no target can be violated.
    """

    def __init__(self, settings: FleetConfig, profiles: Mapping[str, EngineProfile]) -> None:
        self._specs = {spec.iid: spec for spec in sorted(settings.engines, key=attrgetter("iid"))}
        self.split = Split(self._specs.values(), settings.controller)
        self.accounts = Accounts(self._specs, profiles, slo=settings.slo, serving=settings.serving)
        self.troubles = Troubles()
        self._loads = self.accounts.loads
        self._judgement = Judgement(
            self._specs,
            settings.recovery,
            interval_s=settings.controller.monitor_interval_s,
            together=settings.contract is not None,
        )
        self.standings = self._judgement.standings
        self._blame = Blame(
            self._judgement, settings.recovery, interval_s=settings.controller.monitor_interval_s
        )
        starts = ProcessStarts(self._specs)
        self.upkeep = Upkeep(
            self._specs,
            standings=self.standings,
            blame=self._blame,
            starts=starts,
            policy=settings.recovery.engine_restart_policy,
        )
        self.identification = Identification(self.standings, starts, rules=IdentityRules.by(settings))
        self.succeeded = self._blame.succeeded
        """`step` of a good leg, without the way there: it comes with every leg of every request."""
        self._preference = self._blame.preference
        self.pacing = Pacing(
            settings, profiles, standings=self.standings, loads=self._loads, profiled=self.profiled
        )
        self._outage = Outage(self.standings)
        machines = Machines(
            self.split,
            self.upkeep,
            self._judgement,
            self._blame,
            self.identification,
            self._outage,
            self.pacing,
            self.accounts,
            FleetLikeness(frozenset(self._specs), settings.model, settings.recovery.engine_restart_policy),
        )
        self._travel = Travel(machines)
        self._offer = Offer(frozenset(), dict.fromkeys(Leg, ()))
        self._offer_version = -1
        self._offer_until = -math.inf
        self._permit_roles()

    # --- what is ---------------------------------------------------------------------------------

    @property
    def profiled(self) -> bool:
        """True when placement predicts from measured profiles."""
        return self.accounts.profiled

    def roles(self) -> Mapping[str, Role]:
        """Engine ID to its role now, sorted by ID."""
        return dict(self.split.roles)

    @property
    def engines(self) -> tuple[str, ...]:
        """IDs of the configured engines, sorted."""
        return tuple(self._specs)

    def pinned(self) -> tuple[str, ...]:
        return self.split.pinned

    def eligible(self, iid: str, now: float) -> bool:
        """May the engine take new requests. An engine that is not configured may not."""
        return iid in self._offered(now).eligible

    def available(self, now: float) -> tuple[str, ...]:
        """IDs of the eligible engines, sorted."""
        eligible = self._offered(now).eligible
        return tuple(iid for iid in self._specs if iid in eligible)

    def schedulable(self, leg: Leg) -> bool:
        """False when roles and pins forbid the leg on every engine, whatever its health."""
        return bool(self.standings.able[leg])

    def can_serve(self, leg: Leg, now: float) -> bool:
        """True when at least one eligible engine may take the leg."""
        return bool(self._offered(now).legs[leg])

    def lacking(self, now: float) -> Leg | None:
        """A leg that no eligible engine may take; None: a request can be served."""
        return self._offered(now).lacking

    def standing(self, now: float) -> StandingView:
        """Who is suspected, held or out."""
        return self._judgement.view(now)

    def resident(self) -> Mapping[str, Resident]:
        """Engine ID to the legs that this router has there now."""
        return self.accounts.resident()

    def edges(self, now: float) -> tuple[EdgeView, ...]:
        """Edges that fail, are avoided or owe a probe, by producer and consumer."""
        return self._blame.edges.view(now)

    def kv(self, now: float) -> Mapping[str, HeldKv]:
        """Engine ID to the KV that it holds for decodes elsewhere."""
        return self.accounts.kv(now)

    def sizer(self, now: float) -> str | None:
        """The engine to ask for a token count: the prefill candidate with least resident work."""
        candidates = self._producers(now)
        return least_prefill_work(candidates).iid if candidates else None

    # --- select and reserve ----------------------------------------------------------------------

    def reserve_prefill(self, demand: Demand, now: float, *, avoid: Set[str] = _NOBODY) -> Reservation | None:
        """Chooses the engine for a prefill leg and counts it there. None: no eligible engine.

        `avoid` names engines that failed this request; they are used only when no other is left.
        """
        candidates = self._producers(now, avoid)
        return self.accounts.prefill(candidates, demand) if candidates else None

    def reserve_decode(
        self, demand: Demand, now: float, *, producer: str, avoid: Set[str] = _NOBODY
    ) -> Reservation | None:
        """Chooses the engine for a decode leg and counts it there. None: no engine may take it.

        The `producer` of the KV is used only when no other engine may take the leg; an engine to
        `avoid` comes even after the producer.
        """
        offer = self._offered(now)
        if not offer.consumers:
            offer = self._offer_of(self.upkeep.finishing(producer))
        candidates = offer.legs[Leg.DECODE]
        if avoid:
            candidates = without(candidates, avoid)
        if producer in offer.consumers:
            candidates = without(candidates, {producer})
        if not candidates:
            return None
        if not self._preference.idle:
            local = self._alone(producer, offer) if producer not in avoid else ()
            candidates = self._preference.consumers(candidates, now, producer=producer, local=local)
        return self.accounts.decode(candidates, demand)

    def release(self, reservation: Reservation, now: float) -> None:
        """Ends a reservation. Again, or for one of another fleet: nothing happens."""
        self.accounts.release(reservation)

    # --- evidence and time -----------------------------------------------------------------------

    def step(self, evidence: Evidence, now: float) -> tuple[Effect, ...]:
        """Takes one piece of evidence; what is to be told and looked at because of it."""
        if type(evidence) is LegFailed and evidence.way == FIRST_TOKEN_MISSED:
            self.split.risk.note(Risk.FIRST_TOKEN_TIMEOUT, now)
        self.troubles.note(evidence, now)
        judged = (*self._blame.step(evidence, now), *self.identification.step(evidence, now))
        return (*judged, *self._outage.look(now))

    def tick(self, now: float) -> tuple[Effect, ...]:
        """What time alone brings, once a pass: quarantines and KV leases that ended, probes that are due."""
        self.accounts.expire(now)
        brought = (*self._blame.tick(now), *self.identification.tick(now))
        return (*brought, *self._outage.look(now))

    def control(self, now: float) -> tuple[Effect, ...]:
        """Role control, once a pass: at most one engine changes its role."""
        standings = self.standings
        unverified = standings.barred.union(standings.unverified()).difference(standings.ejected())
        sights = [
            EngineSight(
                iid,
                self.split.roles[iid],
                pinned=spec.pin,
                eligible=self.eligible(iid, now),
                unverified=iid in unverified,
                resident=self._loads[iid].prefills + self._loads[iid].decodes,
            )
            for iid, spec in self._specs.items()
        ]
        moves, effects = self.split.moves, self.split.control(sights, now)
        if self.split.moves != moves:
            self._permit_roles()
        return effects

    # --- what travels ----------------------------------------------------------------------------

    def restore(
        self, document: HandoffDocument, now: float, *, opening: Opening = TAKEOVER
    ) -> tuple[str, ...]:
        """Takes roles of unpinned engines, holds, ejections and streaks from a handoff document, and carries
        what nobody owns yet; resident work stays as it is.

        With another engine set the configured split stays (cluster.md section 7). Returns sentences for
        the log, empty when everything was taken.
        """
        return self._travel.restore(document, now, opening=opening, roles_taken=self._permit_roles)

    def export(self, now: float) -> FleetState:
        """The fleet's part of the handoff document."""
        return self._travel.export(now)

    def check_invariants(self) -> None:
        """Raises InvariantViolation where accounts, blame or drains contradict themselves."""
        self.accounts.check_invariants()
        self._blame.check_invariants()
        self.identification.check_invariants()
        self.upkeep.check_invariants()

    # --- inside ----------------------------------------------------------------------------------

    def _permit_roles(self) -> None:
        """After a change of roles."""
        self.standings.able = self.split.able()
        self._offer_version = -1

    def _producers(self, now: float, avoid: Set[str] = _NOBODY) -> tuple[EngineLoad, ...]:
        """Whom to choose from for a prefill or its token count; may be empty."""
        offer = self._offered(now)
        candidates = offer.legs[Leg.PREFILL]
        if avoid:
            candidates = without(candidates, avoid)
        if self._preference.idle:
            return candidates
        return self._preference.producers(candidates, now, consumers=offer.legs[Leg.DECODE])

    def _offered(self, now: float) -> Offer:
        """Made anew only when membership has changed: a quarantine that is over drops out here, by itself."""
        if self.standings.version != self._offer_version or now >= self._offer_until:
            standings = self.standings
            self._offer = self._offer_of(standings.eligible(now))
            self._offer_version = standings.version
            self._offer_until = standings.next_change(now)
        return self._offer

    def _offer_of(self, takers: Set[str]) -> Offer:
        return make_offer(takers, able=self.standings.able, roles=self.split.roles, loads=self._loads)

    def _alone(self, producer: str, offer: Offer) -> tuple[EngineLoad, ...]:
        """The producer, if it may decode its own KV."""
        may = producer in offer.eligible and producer in self.standings.able[Leg.DECODE]
        return (self._loads[producer],) if may else ()
