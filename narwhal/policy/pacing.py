"""Decode drift joined with where engines stand and what is resident there (failures.md section 6). Pure.

| event | effect |
| --- | --- |
| roll, local prefill work in the interval | drift scoring of that engine pauses |
| roll, decode observations alone | a sample |
| roll, ejected (for drift, too) or drained | no history; its last streams are no evidence |
| close, verdict probation | told; the penalty weighs on its placement until probation ends, less trials |
| begin anew (another ownership) | no history of anybody |
| close, verdict ejection | ejected, unless it is the last engine that can serve a role: then told only |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from narwhal.model.decoding import DecodeSeen, DriftHealth, RoleLoad
from narwhal.model.effect import Effect, Told
from narwhal.model.engine import EngineProfile, Role
from narwhal.model.settings import FleetConfig
from narwhal.policy.cost import NEUTRAL_TOKENS_PER_S, EngineLoad
from narwhal.policy.drift import Drift, DriftVerdict, DriftWord
from narwhal.policy.standings import Standings


class Pacing:
    """Owned by the fleet. `loads` are the fleet's accounts by engine ID; `profiles` may lack engines."""

    def __init__(
        self,
        settings: FleetConfig,
        profiles: Mapping[str, EngineProfile],
        *,
        standings: Standings,
        loads: Mapping[str, EngineLoad],
        profiled: bool,
    ) -> None:
        """`profiled`: costs are predicted seconds and shares of the target, not tokens."""
        health = settings.recovery.health
        self._drift = Drift(health, profiles)
        self._standings = standings
        self._loads = loads
        self._profiles = profiles
        self._profiled = profiled
        self._ttft_s, self._tpot_s = settings.slo.ttft_s, settings.slo.tpot_s
        penalty_s = health.probation_penalty_s
        tokens = penalty_s * NEUTRAL_TOKENS_PER_S
        self._penalty = (penalty_s, penalty_s / self._ttft_s) if profiled else (tokens, tokens)
        self._weighed: tuple[str, ...] = ()
        self._intervals: Mapping[str, float] = {}

    # --- what is ---------------------------------------------------------------------------------

    @property
    def probation(self) -> tuple[str, ...]:
        """IDs of the engines on probation, sorted."""
        return self._drift.probation

    def load(self, engines: Mapping[Role, Iterable[str]]) -> RoleLoad:
        """Mean load of these engines of each role, by resident prefills and by the last interval's tokens.

        Mixed work counts: it is what clients get.
        """
        if not self._profiled:
            return RoleLoad()
        prefill = [self._loads[iid].prefill_work / self._ttft_s for iid in engines[Role.PREFILL]]
        decode = [self._decode_load(iid) for iid in engines[Role.DECODE]]
        return RoleLoad(fmean(prefill or [0.0]), fmean(decode or [0.0]))

    def health(self, now: float) -> Mapping[str, DriftHealth]:
        """Engine ID to its drift evidence; engines that showed nothing yet are left out."""
        return self._drift.health(now)

    # --- evidence and time -----------------------------------------------------------------------

    def roll(self, seen: Iterable[DecodeSeen], now: float) -> None:
        """Ends one interval of a monitor pass: what the open streams showed in it."""
        told = {one.iid: one for one in seen}
        self._intervals = {iid: one.interval_s for iid, one in told.items()}
        for iid, load in self._loads.items():
            mixed = load.end_interval()
            if self._standings.is_out(iid):
                self._drift.forget(iid)
            elif not mixed:
                if iid in told:
                    self._drift.observe(told[iid], now)
            elif iid in told or self._drift.measuring(iid):
                self._drift.pause(iid, now)
        self._weigh(now)

    def close(self, now: float) -> tuple[Effect, ...]:
        """Closes the windows that are over."""
        effects = [effect for verdict in self._drift.close(now) for effect in self._enforce(verdict, now)]
        self._weigh(now)
        return tuple(effects)

    def begin_anew(self, now: float) -> None:
        """Another ownership begins: what engines showed before is forgotten, counts stay."""
        for iid in self._loads:
            self._drift.forget(iid)
        self._intervals = {}
        self._weigh(now)

    def check_invariants(self) -> None:
        """Raises InvariantViolation where an account contradicts itself."""
        self._drift.check_invariants()

    # --- inside ----------------------------------------------------------------------------------

    def _enforce(self, verdict: DriftVerdict, now: float) -> tuple[Effect, ...]:
        iid = verdict.iid
        if verdict.word is not DriftWord.EJECTION:
            fields = {"iid": iid, "reason": verdict.reason, "enforced": True}
            return (Told(verdict.word.value, fields),)
        return self._standings.evict(iid, verdict.reason, now=now)

    def _decode_load(self, iid: str) -> float:
        """What the tokens take beyond the idle engine's interval, of what the target leaves for it."""
        idle_s = self._profiles[iid].tpot_intercept
        room_s = self._tpot_s - idle_s
        taken_s = max(0.0, self._intervals.get(iid, 0.0) - idle_s)
        # A target below the idle interval leaves nothing: any token misses it.
        return taken_s / room_s if room_s > 0 else self._intervals.get(iid, 0.0) / self._tpot_s

    def _weigh(self, now: float) -> None:
        """The penalty of probation on the placement of those that carry it, and of nobody else."""
        penalised = self._drift.penalised(now)
        if self._weighed == penalised:
            return
        for iid in self._weighed:
            self._loads[iid].penalise(0.0, 0.0)
        self._weighed = penalised
        for iid in penalised:
            self._loads[iid].penalise(*self._penalty)
