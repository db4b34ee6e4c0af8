"""The drift machine against a naive one that keeps every sample and every score."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from narwhal.model.decoding import DecodeSeen
from narwhal.model.settings import HealthSettings
from narwhal.policy.drift import Drift, DriftWord

IIDS = ("d0", "d1", "d2", "d3")
LEVELS = (0.5, 1.0, 2.0, 4.0, 16.0)


@dataclass
class Naive:
    """One engine by the sentences of failures.md alone."""

    samples: list[float] = field(default_factory=list)
    began: float | None = None
    healthy: list[float] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    """`over` or `healthy` of each window that got one, since the history began."""
    last: tuple[float, float, bool] | None = None
    """Score, time, over."""
    probation: bool = False
    undersampled: int = 0
    scored: int = 0

    def streak(self, word: str) -> int:
        count = 0
        for verdict in reversed(self.verdicts):
            if verdict != word:
                break
            count += 1
        return count


class DriftAgainstNaive(RuleBasedStateMachine):
    @initialize(
        min_samples=st.integers(1, 3),
        probation=st.integers(1, 3),
        more=st.integers(0, 2),
        recovery=st.integers(1, 3),
        relative_band=st.sampled_from((0.0, 1.5)),
    )
    def begin(
        self, min_samples: int, probation: int, more: int, *, recovery: int, relative_band: float
    ) -> None:
        self.settings = HealthSettings(
            window_s=4.0,
            drift_band=2.0,
            relative_band=relative_band,
            min_samples=min_samples,
            probation_windows=probation,
            evict_windows=probation + more,
            recovery_windows=recovery,
            probation_penalty_s=1.0,
        )
        self.drift = Drift(self.settings, {})
        self.naive = {iid: Naive() for iid in IIDS}
        self.now = 0.0

    @rule(levels=st.fixed_dictionaries({iid: st.sampled_from((None, *LEVELS)) for iid in IIDS}))
    def a_pass(self, levels: dict[str, float | None]) -> None:
        self._observe(levels)
        self._close()

    @rule(
        levels=st.fixed_dictionaries({iid: st.sampled_from(LEVELS) for iid in IIDS}),
        passes=st.integers(4, 12),
    )
    def steady_passes(self, levels: dict[str, float], passes: int) -> None:
        for _ in range(passes):
            self._observe(levels)
            self._close()

    @rule(iid=st.sampled_from(IIDS))
    def prefill_work(self, iid: str) -> None:
        self.drift.pause(iid, self.now)
        self.naive[iid].samples, self.naive[iid].began = [], None

    @rule(iid=st.sampled_from(IIDS))
    def ejection(self, iid: str) -> None:
        self.drift.forget(iid)
        old = self.naive[iid]
        self.naive[iid] = Naive(undersampled=old.undersampled, scored=old.scored)

    def _observe(self, levels: dict[str, float | None]) -> None:
        for iid, level in levels.items():
            if level is not None:
                self.drift.observe(DecodeSeen(iid, level, 1.0, 1.0), self.now)
                naive = self.naive[iid]
                naive.began = self.now if naive.began is None else naive.began
                naive.samples.append(level)
        self.now += 1.0

    def _close(self) -> None:
        found = {(verdict.iid, verdict.word) for verdict in self.drift.close(self.now)}
        assert found == self._expected()

    def _expected(self) -> set[tuple[str, DriftWord]]:
        closing = [iid for iid in IIDS if self._scores(self.naive[iid])]
        return {(iid, word) for iid in closing for word in self._verdicts(iid)}

    def _scores(self, naive: Naive) -> bool:
        if naive.began is None or self.now - naive.began < self.settings.window_s:
            return False
        samples, naive.samples, naive.began = naive.samples, [], None
        if len(samples) < self.settings.min_samples:
            naive.undersampled += 1
            return False
        score = fmean(samples)
        baseline = median(naive.healthy[-8:]) if naive.healthy else score
        naive.scored += 1
        naive.last = (score, self.now, score > 2.0 * baseline)
        return True

    def _verdicts(self, iid: str) -> list[DriftWord]:
        naive = self.naive[iid]
        assert naive.last is not None
        score, _, over = naive.last
        words = []
        if not over:
            naive.healthy.append(score)
            naive.verdicts.append("healthy")
            if naive.probation and naive.streak("healthy") >= self.settings.recovery_windows:
                naive.probation = False
                words.append(DriftWord.PROBATION_ENDED)
        elif not self._surge(iid, score):
            naive.verdicts.append("over")
            if naive.streak("over") >= self.settings.probation_windows and not naive.probation:
                naive.probation = True
                words.append(DriftWord.PROBATION)
            if naive.streak("over") >= self.settings.evict_windows:
                words.append(DriftWord.EJECTION)
        return words

    def _surge(self, iid: str, score: float) -> bool:
        others = [
            naive.last
            for name, naive in self.naive.items()
            if name != iid and naive.last is not None and self.now - naive.last[1] <= 8.0
        ]
        if len(others) < 2 or sum(over for _, _, over in others) / len(others) < 0.5:
            return False
        return score <= self.settings.relative_band * median(one for one, _, _ in others)

    @invariant()
    def accounts_agree(self) -> None:
        if not hasattr(self, "drift"):
            return
        self.drift.check_invariants()
        assert self.drift.probation == tuple(iid for iid in IIDS if self.naive[iid].probation)
        for iid, health in self.drift.health(self.now).items():
            naive = self.naive[iid]
            assert (health.scored, health.undersampled) == (naive.scored, naive.undersampled)
            assert self.drift.measuring(iid) == (naive.began is not None)


TestDriftAgainstNaive = DriftAgainstNaive.TestCase
TestDriftAgainstNaive.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
