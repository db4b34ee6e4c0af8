"""What evidence means for engines: from streaks to verdicts to acts on their standings. Pure.

| evidence | does |
| --- | --- |
| LegSucceeded, LegAnswered with a 4xx | clears streaks |
| LegFailed | counts, quarantines; at the threshold ejects, holds or asks for a health check |
| CountFailed | as LegFailed, and quarantines nobody |
| LegFailed again | quarantines: its token count was counted |
| LegFailed, connections lost behind one and the same request body | holds and asks for an inference probe |
| HealthProbed good | clears, ends caution and quarantine; after timeouts an inference probe follows |
| HealthProbed bad | ejects whom a verdict asked about, unless its streams bring tokens: then `overload` |
| the same, of a suspect carried over with less than a verdict | as a sweep that missed, every pass |
| InferenceProbed good | clears, ends the holds; a local one while one across is owed: asked again at once |
| InferenceProbed bad | ejects |
| LivenessSwept good | as a good health check |
| LivenessSwept bad | one miss, or `overload` while its streams bring tokens; at the threshold ejects |
| HealthProbed, to what is owed no longer | nothing: what is owed now is asked at once |
| any of a probe, inconclusive | nothing: what is owed is asked again |
| Validated | readmits, or keeps the name of the check that failed |

A health check with 200 clears `timeout`, and a stopped core answers `/health`: where no leg has succeeded
since the last timeout, an inference probe without a hold is owed from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from narwhal.model.effect import NOTHING, Effects, ProbeKind
from narwhal.model.evidence import (
    CountFailed,
    Evidence,
    FailureClass,
    HealthProbed,
    InferenceProbed,
    LegAnswered,
    LegFailed,
    LegSucceeded,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument
from narwhal.model.settings import RecoverySettings
from narwhal.model.standing import HoldKind, StandingView
from narwhal.policy.breaker import Breaker, Proof, Verdict
from narwhal.policy.carried_holds import export_holds
from narwhal.policy.edges import is_failed_transfer
from narwhal.policy.ejections import CARRIED
from narwhal.policy.leg_runs import Run
from narwhal.policy.pace import Pace
from narwhal.policy.quarantine import Account, Cause, OfKv, OfRequest
from narwhal.policy.readmission import FAILED
from narwhal.policy.refusals import Refused, is_refusal
from narwhal.policy.standings import Standings
from narwhal.policy.suspicion import Suspicion

_INFERENCE_CHECK = frozenset({FailureClass.STREAM, FailureClass.INFERENCE_STATUS, FailureClass.KV_HANDOFF})
"""Classes that only an inference probe can settle; a health check settles the others."""


class Judgement:
    """Judges configured engines; evidence of any other is nothing. Knows nothing of roles and work."""

    def __init__(
        self,
        engines: Iterable[str],
        settings: RecoverySettings,
        *,
        interval_s: float,
        together: bool = False,
    ) -> None:
        """`interval_s`: seconds between monitor passes. `together`: as in Standings."""
        pace = Pace(settings.readmit_every, interval_s)
        self.standings = Standings(engines, pace=pace, together=together)
        self._breaker = Breaker(eject_after=settings.eject_after, liveness_misses=settings.liveness_misses)
        self._suspicion = Suspicion(self._breaker)
        self.standings.forget = self._suspicion.forget
        self.suspects = self._breaker.engines
        self.row, self.count = self._breaker.row, self._breaker.count
        self.pardon = self._suspicion.pardon
        self._quarantine_s = settings.failure_quarantine_s
        self._steps: Mapping[type, Callable[[Any, float], Effects]] = {
            LegSucceeded: self._succeeded,
            LegFailed: self._failed,
            CountFailed: self._count_failed,
            LegAnswered: self._answered,
            HealthProbed: self._health_probed,
            InferenceProbed: self._inference_probed,
            LivenessSwept: self._swept,
            Validated: self._validated,
        }

    def step(self, evidence: Evidence, now: float) -> Effects:
        """Kinds that others judge: nothing."""
        act = self._steps.get(type(evidence))
        return act(evidence, now) if act is not None else NOTHING

    def view(self, now: float) -> StandingView:
        out = self.standings
        return StandingView(self._breaker.streaks(), out.verifying(), out.ejected(), out.holds(now))

    # --- legs ------------------------------------------------------------------------------------

    def _succeeded(self, evidence: LegSucceeded, now: float) -> Effects:
        self._suspicion.succeeded(evidence.iid, evidence.leg)
        return NOTHING

    def _answered(self, evidence: LegAnswered, now: float) -> Effects:
        if is_refusal(evidence.status):
            self._suspicion.proved(evidence.iid, Proof.ANSWER)
        return NOTHING

    def _failed(self, evidence: LegFailed, now: float) -> Effects:
        iid = evidence.iid
        if iid not in self.standings.engines:
            return NOTHING
        verdict = self._suspicion.failed(evidence)
        if self.standings.is_out(iid):
            return NOTHING
        effects = self._quarantined(evidence, now)
        if verdict is None:
            return effects
        return (*effects, *self._sentence(verdict, evidence, now=now))

    def _count_failed(self, evidence: CountFailed, now: float) -> Effects:
        iid = evidence.iid
        if iid not in self.standings.engines:
            return NOTHING
        verdict = self._suspicion.counted(evidence)
        if verdict is None or self.standings.is_out(iid):
            return NOTHING
        return self._sentence(verdict, evidence, now=now)

    def _quarantined(self, evidence: LegFailed, now: float) -> Effects:
        """Back-pressure is nobody's failure: it quarantines nobody."""
        if self._quarantine_s <= 0 or evidence.failure is FailureClass.OVERLOAD:
            return NOTHING
        reason = f"a {evidence.leg.value} leg failed: {evidence.detail}"
        request = OfRequest(evidence.request, evidence.way) if evidence.request else None
        kv = OfKv(evidence.peer, evidence.failure) if is_failed_transfer(evidence) else None
        until = now + self._quarantine_s
        return self.standings.quarantine(
            evidence.iid, until, reason=reason, now=now, cause=Cause(request, kv)
        )

    def _sentence(self, verdict: Verdict, evidence: LegFailed | CountFailed, *, now: float) -> Effects:
        iid, failure = evidence.iid, evidence.failure
        count = self._breaker.count(iid, failure)
        told = f"{count} {failure.value} failures in a row, last: {evidence.detail}"
        if verdict is Verdict.EJECT:
            return self.standings.eject(iid, told, now=now)
        if verdict is Verdict.HOLD:
            held = self.standings.hold(iid, told, now=now)
            return (*held, *self._ask(ProbeKind.INFERENCE, iid, reason=told, now=now))
        asked = self._ask(ProbeKind.HEALTH, iid, reason=told, now=now)
        if failure is FailureClass.TIMEOUT:
            self.standings.checks.then_inference(iid)
        return asked

    # --- probes ----------------------------------------------------------------------------------

    def _health_probed(self, evidence: HealthProbed, now: float) -> Effects:
        iid = evidence.iid
        if self.standings.checks.is_stale(ProbeKind.HEALTH, evidence):
            return self.standings.checks.again(ProbeKind.HEALTH, iid, now=now)
        if evidence.outcome is ProbeOutcome.GOOD:
            return self._healthy(iid, now)
        if evidence.outcome is ProbeOutcome.INCONCLUSIVE:
            self.standings.checks.postpone(ProbeKind.HEALTH, iid, now=now)
            return NOTHING
        why = self.standings.checks.reason(ProbeKind.HEALTH, iid)
        if not why:
            return NOTHING
        if evidence.streaming or not self._breaker.asks(iid, Verdict.HEALTH):
            # Alive, or a suspect that was carried over with less than a verdict: no more than a sweep tells.
            return self._missed(evidence, now)
        return self.standings.eject(
            iid, f"a health check failed: {evidence.detail}; asked for {why}", now=now
        )

    def _healthy(self, iid: str, now: float) -> Effects:
        producers = self._suspicion.producers(iid)
        follow = self._suspicion.healthy(iid)
        self.standings.verified(iid)
        ended = self.standings.end(iid, HoldKind.QUARANTINE, reason="a health check was good")
        if not self.standings.checks.settle(ProbeKind.HEALTH, iid) and not follow:
            return ended
        if self.standings.is_out(iid):
            return ended
        reason = "legs timed out and /health answers"
        asked = self.standings.checks.ask(
            ProbeKind.INFERENCE, iid, reason=reason, producers=producers, now=now
        )
        return (*ended, *asked)

    def _inference_probed(self, evidence: InferenceProbed, now: float) -> Effects:
        iid, standings = evidence.iid, self.standings
        if evidence.outcome is ProbeOutcome.INCONCLUSIVE:
            standings.checks.postpone(ProbeKind.INFERENCE, iid, now=now)
            return NOTHING
        if evidence.outcome is ProbeOutcome.BAD:
            across = f" across {evidence.peer}" if evidence.peer else ""
            owed = standings.checks.reason(ProbeKind.INFERENCE, iid)
            why = owed or "nothing of its own: it was met on the way"
            reason = f"an inference probe{across} failed: {evidence.detail}; asked for {why}"
            return standings.eject(iid, reason, now=now)
        if not standings.checks.is_answer(iid, peer=evidence.peer, consumer=evidence.consumer):
            return standings.checks.again(ProbeKind.INFERENCE, iid, now=now)
        standings.checks.settle(ProbeKind.INFERENCE, iid)
        self._suspicion.crossed_well(iid)
        return standings.proved(iid, now)

    def _swept(self, evidence: LivenessSwept, now: float) -> Effects:
        iid = evidence.iid
        if evidence.outcome is ProbeOutcome.GOOD:
            return self._healthy(iid, now)
        if evidence.outcome is ProbeOutcome.INCONCLUSIVE or iid not in self.standings.engines:
            return NOTHING
        return self._missed(evidence, now)

    def _missed(self, evidence: LivenessSwept | HealthProbed, now: float) -> Effects:
        """No 200 from `/health`. An engine whose streams bring tokens is alive: that is `overload`."""
        iid = evidence.iid
        failure = FailureClass.OVERLOAD if evidence.streaming else FailureClass.LIVENESS
        verdict = self._breaker.failed(iid, failure)
        if verdict is None or self.standings.is_out(iid):
            return NOTHING
        reason = f"{self._breaker.count(iid, failure)} health checks in a row missed, last: {evidence.detail}"
        if verdict is Verdict.HEALTH:
            return self._ask(ProbeKind.HEALTH, iid, reason=reason, now=now)
        return self.standings.eject(iid, reason, now=now)

    def _validated(self, evidence: Validated, now: float) -> Effects:
        iid = evidence.iid
        # Drained meanwhile: an operator readmits it.
        if iid in self.standings.drained or not self.standings.is_ejected(iid):
            return NOTHING
        failed = evidence.checks and evidence.checks[-1].outcome == FAILED
        if failed or not evidence.conclusive:
            self.standings.ejections.looked(iid, now)
        if not evidence.conclusive:
            return NOTHING
        if failed:
            return self.standings.returns.check_failed(iid, evidence.checks)
        return self.standings.returns.readmit(iid, evidence.checks, now=now)

    # --- by word of whoever knows who is to blame -----------------------------------------------

    def take_back(self, iid: str, account: Account) -> Effects:
        """What was on that account and added to its quarantine was not its own."""
        if self._quarantine_s <= 0:
            return NOTHING
        self.standings.version += 1
        if not self.standings.holding.take_back(iid, account):
            return NOTHING
        return self.standings.end(iid, HoldKind.QUARANTINE, reason="the failure was not its own")

    def suspect(self, iid: str, reason: str, *, now: float, hold: bool = True, consumer: str = "") -> Effects:
        """An inference probe decides. `consumer`: who is to pull its KV in it, "" = as its failures tell."""
        if iid not in self.standings.engines or self.standings.is_out(iid):
            return NOTHING
        held = self.standings.hold(iid, reason, now=now) if hold else NOTHING
        if consumer:
            return (*held, *self.standings.checks.ask_across(iid, reason=reason, consumer=consumer, now=now))
        return (*held, *self._ask(ProbeKind.INFERENCE, iid, reason=reason, now=now))

    def look_into(self, iid: str, found: Refused | Run, *, now: float) -> Effects:
        """It refuses whatever it is asked, or fails one kind of leg: an inference probe decides."""
        if iid not in self.standings.engines or self.standings.is_out(iid):
            return NOTHING
        reason, of_clients = found.reason, found.of_clients
        held = self.standings.hold(iid, reason, now=now, of_clients=of_clients) if found.hold else NOTHING
        pulled = found.producers if isinstance(found, Run) else ()
        producers = (*self._suspicion.producers(iid), *pulled)
        asked = self.standings.checks.ask(
            ProbeKind.INFERENCE, iid, reason=reason, producers=producers, now=now
        )
        return (*held, *asked)

    # --- what travels ----------------------------------------------------------------------------

    def state(self, state: FleetState, now: float) -> FleetState:
        """`state` with what is known here of engines."""
        return replace(
            state,
            ejected=self.standings.ejected(),
            ejections=self.standings.ejections.export(),
            **export_holds(self.standings, now),
            streaks=self._breaker.streaks(),
        )

    def restore(self, document: HandoffDocument, now: float) -> None:
        """Replaces everything by what a handoff tells. An engine with a streak owes a check of its kind."""
        self._suspicion.restore(document.streaks, engines=self.standings.engines)
        self.standings.restore(document, now)
        checks = self.standings.checks
        for iid, streaks in self._breaker.streaks().items():
            if self.standings.is_out(iid):
                continue
            if not _INFERENCE_CHECK.isdisjoint(streaks):
                checks.restored(ProbeKind.INFERENCE, iid, reason=CARRIED, now=now)
            if not _INFERENCE_CHECK.issuperset(streaks):
                checks.restored(ProbeKind.HEALTH, iid, reason=CARRIED, now=now)

    # --- inside ----------------------------------------------------------------------------------

    def _ask(self, kind: ProbeKind, iid: str, *, reason: str, now: float) -> Effects:
        producers = self._suspicion.producers(iid)
        return self.standings.checks.ask(kind, iid, reason=reason, producers=producers, now=now)
