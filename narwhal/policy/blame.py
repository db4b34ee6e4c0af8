"""Whom evidence is held against (failures.md section 9); what is left for engines goes to `judgement`. Pure.

| evidence | who may be to blame | then |
| --- | --- | --- |
| a token count got no connection or no answer | the request | counted, unless the request is suspected |
| a leg failed | the request | what it added anywhere is taken back, its engines owe a probe without a hold |
| a decode behind a KV handoff failed, a probe across an edge | pair, producer or consumer | as `pairs` says |
| 429 and nothing else for 30 s, or 4xx to different requests | the engine | it is held and probed |
| one kind of leg fails in a row, in whatever ways | the engine | as `leg_runs` says it is held and probed |
| clients leave legs that gave nothing | the engine | as `left_legs` says it is probed without a hold |
| a probe began before what is owed now, or before its newest evidence | nobody | it is made again at once |
| a probe with a partner that is out by now was not good | nobody | the same, without it |
| another process start or ID | nobody | every edge that knew the old process is probed |
| anything else | the engine | as `judgement` says |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from math import inf
from typing import Any

from narwhal.errors import InvariantViolation
from narwhal.model.effect import NOTHING, Effect, Effects, ProbeKind, RequestSuspected, Told, tell
from narwhal.model.evidence import (
    CohortProved,
    CountFailed,
    EdgeProbed,
    Evidence,
    Identified,
    InferenceProbed,
    LegAnswered,
    LegFailed,
    LegLeft,
    LegSucceeded,
    ProbeOutcome,
    ProcessSeen,
    Validated,
)
from narwhal.model.settings import RecoverySettings
from narwhal.policy.back_pressure import BackPressure
from narwhal.policy.edges import Edges, is_about_transfer
from narwhal.policy.faults import BACK_PRESSURE
from narwhal.policy.judgement import Judgement
from narwhal.policy.left_legs import LeftLegs
from narwhal.policy.leg_runs import LegRuns
from narwhal.policy.pace import Pace
from narwhal.policy.pairs import Pairs
from narwhal.policy.poison import Counted, Poison
from narwhal.policy.preference import Preference
from narwhal.policy.processes import Processes
from narwhal.policy.quarantine import OfRequest
from narwhal.policy.refusals import Refusals, is_refusal, why_refused

LOOK_AGAIN_S = 5.0
"""Pause between two probes of one engine for suspected requests: a client may send one for ever."""


class Blame:
    """Stands before `judgement`. `edges` is for people to read, `preference` for placement to ask."""

    def __init__(self, judgement: Judgement, settings: RecoverySettings, *, interval_s: float) -> None:
        """`interval_s`: seconds between monitor passes."""
        engines, eject_after = judgement.standings.engines, settings.eject_after
        pace = Pace(settings.readmit_every, interval_s)
        aside = judgement.standings.is_aside
        self.edges = Edges(engines, eject_after=eject_after, pace=pace, aside=aside)
        self.pressure = BackPressure(eject_after=eject_after, every_s=pace.every_s)
        self._pairs = Pairs(judgement, self.edges, busy=self.pressure.saturated)
        self.preference = Preference(self.edges, self.pressure)
        self._judgement = judgement
        self._relapses = judgement.standings.checks.relapses
        self._eject_after = eject_after
        self._begin_anew()
        judgement.standings.absolve = self._pairs.ejected
        self._troubled: Set[str] = frozenset()
        """Engines with anything that a good leg clears: looked for after all but good legs of the others."""
        self._steps: Mapping[type, Callable[[Any, float], Effects]] = {
            LegFailed: self._failed,
            CountFailed: self._count_failed,
            LegAnswered: self._answered,
            LegLeft: self._left,
            InferenceProbed: self._inference_probed,
            EdgeProbed: self._pairs.edge_probed,
            ProcessSeen: self._process_seen,
            Identified: self._process_seen,
            Validated: self._validated,
            CohortProved: self._cohort_proved,
        }

    def step(self, evidence: Evidence, now: float) -> Effects:
        if type(evidence) is LegSucceeded:
            return self.succeeded(evidence, now)
        act = self._steps.get(type(evidence), self._judgement.step)
        effects = act(evidence, now)
        self._look()
        return effects

    def succeeded(self, evidence: LegSucceeded, now: float) -> Effects:
        """A good leg, thousands of times a second: a look-up, where its engine and pair do well."""
        iid = evidence.iid
        effects = self._clear(evidence, now) if iid in self._troubled else NOTHING
        if evidence.peer:
            shown = self.edges.crossed(evidence.peer, iid, now=min(now, evidence.began))
            if not shown:
                return effects
            effects = (*effects, *self._pairs.shown(shown, now))
            self._look()
            return effects
        if evidence.remote_engine_id and self._processes.named(iid, evidence.remote_engine_id):
            return (*effects, *self._pairs.restarted(iid, now))
        return effects

    def tick(self, now: float) -> Effects:
        """What time brings: to engines, and to edges whose probes are due."""
        return (*self._returned(self._judgement.standings.tick(now), now), *self._pairs.probes_due(now))

    def export(self, now: float) -> list[dict[str, Any]]:
        """The avoided edges, for a handoff."""
        return self.edges.export(now)

    def restore(self, edges: object, now: float) -> None:
        """Takes the avoided edges of a handoff, after `judgement` has taken its part. The rest is evidence of
        an earlier ownership: it is gone."""
        self.edges.restore(edges, now)
        self.pressure.clear()
        self._begin_anew()
        self._look()

    def _begin_anew(self) -> None:
        self._refusals = Refusals(eject_after=self._eject_after)
        self._runs = LegRuns(eject_after=self._eject_after, fails_elsewhere=self.edges.fails_elsewhere)
        self._left_legs = LeftLegs(eject_after=self._eject_after)
        self._poison = Poison()
        self._pairs.taken_back = self._taken_back
        self._processes = Processes()
        self._looked_at: dict[str, float] = {}

    def check_invariants(self) -> None:
        """Raises InvariantViolation where one of the machines contradicts itself."""
        machines = (self.edges, self._refusals, self._poison, self._processes, self.preference)
        for machine in (*machines, self._relapses, self._runs, self._left_legs):
            machine.check_invariants()
        if not self._troubled >= self._in_trouble():
            raise InvariantViolation("blame: a good leg would clear somebody of nothing")

    def _look(self) -> None:
        self._troubled = self._in_trouble()
        self.preference.look()

    def _in_trouble(self) -> Set[str]:
        failing = self._refusals.engines | self._runs.engines | self._left_legs.silent
        return self._judgement.suspects() | failing | self.pressure.counted | self._relapses.engines

    # --- legs ------------------------------------------------------------------------------------

    def _clear(self, evidence: LegSucceeded, now: float) -> Effects:
        """What a good leg ends on an engine that did not do well."""
        self._refusals.succeeded(evidence.iid)
        self._relapses.succeeded(evidence.iid)
        self._runs.succeeded(evidence)
        self._left_legs.heard(evidence.iid)
        self.pressure.answered(evidence.iid)
        effects = self._judgement.step(evidence, now)
        self._look()
        return effects

    def _failed(self, evidence: LegFailed, now: float) -> Effects:
        self._relapses.failed(evidence.iid)
        self._left_legs.failed(evidence)
        saturated = self.pressure.failed(evidence, now)
        row = self._judgement.row(evidence.iid, evidence.failure)
        charged = self._poison.failed(evidence, now)
        if charged is not None:
            return self._poisoned(evidence, charged, now=now)
        before = self._judgement.count(evidence.iid, evidence.failure)
        effects = self._pairs.failed(evidence, now)
        charged_now = self._judgement.count(evidence.iid, evidence.failure) > before
        if charged_now:
            self._poison.charged(evidence, row=row)
        if saturated:
            return (*effects, *self._judgement.suspect(evidence.iid, saturated, now=now))
        run = self._runs.failed(evidence, charged=charged_now)
        if self._judgement.count(evidence.iid, evidence.failure) >= self._eject_after:
            return effects
        return (*effects, *(self._judgement.look_into(evidence.iid, run, now=now) if run else NOTHING))

    def _count_failed(self, evidence: CountFailed, now: float) -> Effects:
        row = self._judgement.row(evidence.iid, evidence.failure)
        counts = self._poison.count_failed(evidence, now, row=row)
        return self._judgement.step(evidence, now) if counts else NOTHING

    def _poisoned(self, evidence: LegFailed, charged: Mapping[Counted, int], *, now: float) -> Effects:
        """The request's fault. Its engines are looked at all the same: both may be broken."""
        reason = f"one request failed in the same way ({evidence.way}) on two engines"
        engines = self._poison.engines(evidence)
        digest = evidence.request.hex()[:16]
        effects: list[Effect] = [
            RequestSuspected(reason),
            tell("request_suspected", evidence.iid, reason=reason, engines=list(engines), request=digest),
        ]
        for (iid, failure, peer, row), times in charged.items():
            self._judgement.pardon(iid, failure, times=times, row=row)
            for _ in range(times if is_about_transfer(failure, evidence.way) else 0):
                self.edges.take_back(peer, iid, failure=failure, row=row)
        for iid in engines:
            self._runs.pardon(iid, evidence.request)
            effects += self._judgement.take_back(iid, OfRequest(evidence.request, evidence.way))
            if now >= self._looked_at.get(iid, -inf) + LOOK_AGAIN_S:
                self._looked_at[iid] = now
                effects += self._judgement.suspect(iid, reason, hold=False, now=now)
        return tuple(effects)

    def _taken_back(self, counted: Counted, times: int) -> None:
        self._poison.taken_back(counted, times)
        self._runs.taken_back(counted, times)

    def _left(self, evidence: LegLeft, now: float) -> Effects:
        reason = self._left_legs.left(evidence, now)
        return self._judgement.suspect(evidence.iid, reason, hold=False, now=now) if reason else NOTHING

    def _answered(self, evidence: LegAnswered, now: float) -> Effects:
        self.pressure.answered(evidence.iid)
        self._left_legs.heard(evidence.iid)
        effects = self._judgement.step(evidence, now)
        found = self._refusals.answered(evidence, now) or self._runs.answered(evidence)
        return (*effects, *(self._judgement.look_into(evidence.iid, found, now=now) if found else NOTHING))

    # --- probes ----------------------------------------------------------------------------------

    def _inference_probed(self, evidence: InferenceProbed, now: float) -> Effects:
        iid = evidence.iid
        checks = self._judgement.standings.checks
        if checks.is_stale(ProbeKind.INFERENCE, evidence):
            return checks.again(ProbeKind.INFERENCE, iid, now=now)
        bad, status = evidence.outcome is ProbeOutcome.BAD, evidence.status
        if evidence.outcome is not ProbeOutcome.GOOD and self._pairs.lost_its_partner(evidence):
            return checks.again(ProbeKind.INFERENCE, iid, now=now)
        if bad and status in BACK_PRESSURE and not self.pressure.probed(iid, now):
            # It is busy, as a sound one may be; the probe is made again, and for ever it cannot be busy.
            evidence = replace(evidence, outcome=ProbeOutcome.INCONCLUSIVE, detail=f"it is busy ({status})")
        if evidence.outcome is ProbeOutcome.GOOD:
            self._refusals.proved(iid, now)
            self._begin_well(iid)
            restored = self._pairs.crossed_well(evidence, now)
            return (*restored, *self._judgement.step(evidence, now))
        if evidence.outcome is ProbeOutcome.BAD and _may_be_the_transfer(evidence):
            return self._pairs.across_failed(evidence, now)
        if evidence.outcome is ProbeOutcome.BAD and _is_the_pull(evidence):
            return self._pairs.pull_failed(evidence, now)
        if evidence.outcome is ProbeOutcome.BAD and is_refusal(evidence.status):
            evidence = replace(evidence, detail=why_refused(evidence.status))
        if evidence.outcome is ProbeOutcome.INCONCLUSIVE and evidence.consumer:
            self._pairs.told_nothing(evidence, now)
        return self._judgement.step(evidence, now)

    def _process_seen(self, evidence: ProcessSeen | Identified, now: float) -> Effects:
        if evidence.process_start is None:
            return NOTHING
        new = self._processes.started(evidence.iid, evidence.process_start)
        return (
            *self._judgement.step(evidence, now),
            *(self._pairs.restarted(evidence.iid, now) if new else NOTHING),
        )

    def _validated(self, evidence: Validated, now: float) -> Effects:
        return self._returned(self._judgement.step(evidence, now), now)

    def _cohort_proved(self, evidence: CohortProved, now: float) -> Effects:
        return self._returned(self._judgement.standings.returns.proved(evidence, now), now)

    def reinstate(self, iid: str, now: float) -> Effects:
        """A drained engine passed every check: nothing is held against the process that returns."""
        return self._returned(self._judgement.standings.reinstate(iid), now)

    def _returned(self, effects: Effects, now: float) -> Effects:
        """What was known of an engine that is readmitted was of the time before."""
        for effect in effects:
            if isinstance(effect, Told) and effect.kind == "readmission":
                iid = str(effect.fields["iid"])
                self.edges.readmitted(iid, now)
                self._refusals.forget(iid)
                self._begin_well(iid)
        self._look()
        return effects

    def _begin_well(self, iid: str) -> None:
        """What it did with clients' legs before counts no longer."""
        self._runs.forget(iid)
        self._left_legs.heard(iid)
        self.pressure.forget(iid)


def _may_be_the_transfer(evidence: InferenceProbed) -> bool:
    """It pulled KV, and was not told no or "later", nor refused a connection: no transfer brings that."""
    return bool(evidence.peer) and evidence.reached and not 400 <= evidence.status < 500


def _is_the_pull(evidence: InferenceProbed) -> bool:
    """Its own leg was well, and a consumer could not pull from it: a status can be its own leg's only."""
    return bool(evidence.consumer) and not evidence.own_leg and not evidence.status
