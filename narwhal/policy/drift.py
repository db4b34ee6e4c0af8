"""Decode drift (failures.md section 6): an engine whose tokens come slower than they used to. Pure.

Each engine has a window of residuals, one sample per monitor pass with fresh observations. Of one engine:

| event | effect |
| --- | --- |
| observe | a sample; the first one opens the window and ends a pause |
| pause (local prefill work in the interval) | the window and its samples go; all else stays |
| close, window not over yet, or none | nothing |
| close, fewer samples than `min_samples` | undersampled: the samples go, all else stays |
| close, scored, at or below the band | healthy: the score joins the baseline, the streak of over ends |
| close, scored, over the band, peers too | fleet-wide surge: no verdict, all stays |
| close, scored, over the band | over: the streak of healthy ends |
| `probation_windows` over in a row | verdict `probation` |
| `evict_windows` over in a row, and each one after | verdict `ejection`: a request, guarded by the fleet |
| on probation, `recovery_windows` healthy in a row | verdict `probation_ended` |
| on probation, nothing observed for a window | on trial until the next observation |
| forget (a confirmed ejection) | no history: the next scored window is the first |

A score is the mean residual of a window. The band is `drift_band` × the median of the last 8 healthy
scores; the first scored window is its own baseline, hence healthy. A peer's score counts for two windows.
On trial an engine carries no penalty: without work it could never show that it has recovered, nor that it
has not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from narwhal.errors import InvariantViolation
from narwhal.model.decoding import DecodeSeen, DriftHealth
from narwhal.model.engine import EngineProfile
from narwhal.model.settings import HealthSettings

HEALTHY_KEPT = 8
"""Healthy scores behind a baseline."""
PEERS_FROM = 3
"""Scored engines from which on the peer test is made."""
FRESH_WINDOWS = 2
"""For so many windows a score is that of a peer: windows of different engines do not close together."""


class DriftWord(StrEnum):
    PROBATION = "probation"
    PROBATION_ENDED = "probation_ended"
    EJECTION = "ejection"


@dataclass(frozen=True, slots=True)
class DriftVerdict:
    """`reason`: one sentence. An EJECTION is a request: the owner of the fleet may refuse it."""

    iid: str
    word: DriftWord
    reason: str


class Drift:
    """The drift evidence of all engines of one router."""

    def __init__(self, settings: HealthSettings, profiles: Mapping[str, EngineProfile]) -> None:
        """`profiles`: engine ID to its measured profile, may be empty or lack engines."""
        self._settings = settings
        self._profiles = profiles
        self._records: dict[str, _Record] = {}

    # --- evidence --------------------------------------------------------------------------------

    def observe(self, seen: DecodeSeen, now: float) -> None:
        """One interval of decode work alone."""
        record = self._record(seen.iid)
        record.seen_at = now
        record.paused = False
        if record.window is None:
            record.window = _Window(began=now)
        record.window.samples += 1
        record.window.total += self._residual(seen)

    def pause(self, iid: str, now: float) -> None:
        """The engine had local prefill work in this interval: its profile says nothing about it."""
        record = self._record(iid)
        record.seen_at = now
        record.window = None
        if not record.paused:
            record.paused = True
            record.pauses += 1

    def measuring(self, iid: str) -> bool:
        """Has the engine an open window."""
        record = self._records.get(iid)
        return record is not None and record.window is not None

    def forget(self, iid: str) -> None:
        """The engine was ejected: what it showed before says nothing about what comes back. Counts stay."""
        record = self._records.get(iid)
        if record is not None:
            self._records[iid] = _Record(record.scored, record.undersampled, pauses=record.pauses)

    # --- verdicts --------------------------------------------------------------------------------

    def close(self, now: float) -> tuple[DriftVerdict, ...]:
        """Closes the windows that are over; what follows for each engine, in order of ID."""
        closed = [iid for iid in sorted(self._records) if self._score(self._records[iid], now)]
        if not closed:
            return ()
        peers = self._peers(now)
        return tuple(verdict for iid in closed for verdict in self._judge(iid, peers))

    def _score(self, record: _Record, now: float) -> bool:
        """Scores a window that is over; False: there is none, or it had too few samples."""
        window = record.window
        if window is None or now - window.began < self._settings.window_s:
            return False
        record.window = None
        if window.samples < self._settings.min_samples:
            record.undersampled += 1
            return False
        record.scored += 1
        record.score, record.scored_at = window.total / window.samples, now
        record.over = record.score > self._settings.drift_band * record.baseline
        return True

    def _judge(self, iid: str, peers: _Peers) -> Iterator[DriftVerdict]:
        record = self._records[iid]
        if not record.over:
            yield from self._healthy(iid, record)
        elif not peers.surge(record.score, relative_band=self._settings.relative_band):
            yield from self._over(iid, record)

    def _healthy(self, iid: str, record: _Record) -> Iterator[DriftVerdict]:
        record.healthy_scores.append(record.score)
        record.over_streak = 0
        record.healthy_streak += 1
        if record.on_probation and record.healthy_streak >= self._settings.recovery_windows:
            record.on_probation = False
            reason = f"its decode interval was within the band for {record.healthy_streak} windows in a row"
            yield DriftVerdict(iid, DriftWord.PROBATION_ENDED, reason)

    def _over(self, iid: str, record: _Record) -> Iterator[DriftVerdict]:
        record.healthy_streak = 0
        record.over_streak += 1
        times = record.score / record.baseline
        reason = (
            f"its decode interval is {times:.1f} times its healthy one, over {self._settings.drift_band:g} "
            f"for {record.over_streak} windows in a row"
        )
        if record.over_streak >= self._settings.probation_windows and not record.on_probation:
            record.on_probation = True
            yield DriftVerdict(iid, DriftWord.PROBATION, reason)
        if record.over_streak >= self._settings.evict_windows:
            yield DriftVerdict(iid, DriftWord.EJECTION, reason)

    def _peers(self, now: float) -> _Peers:
        since = now - FRESH_WINDOWS * self._settings.window_s
        fresh = [
            one for one in self._records.values() if one.scored_at is not None and one.scored_at >= since
        ]
        return _Peers(sorted(one.score for one in fresh), sum(one.over for one in fresh))

    # --- what is ---------------------------------------------------------------------------------

    @property
    def probation(self) -> tuple[str, ...]:
        """IDs of the engines on probation, sorted."""
        return tuple(sorted(iid for iid, record in self._records.items() if record.on_probation))

    def penalised(self, now: float) -> tuple[str, ...]:
        """IDs of the engines on probation that are not on trial, sorted."""
        since = now - self._settings.window_s
        return tuple(iid for iid in self.probation if self._records[iid].seen_at > since)

    def health(self, now: float) -> Mapping[str, DriftHealth]:
        """Engine ID to its evidence; engines that showed nothing yet are left out."""
        return {iid: record.health(now) for iid, record in sorted(self._records.items())}

    def check_invariants(self) -> None:
        """Raises InvariantViolation where an account contradicts itself."""
        for iid, record in self._records.items():
            if record.over_streak and record.healthy_streak:
                raise InvariantViolation(f"{iid}: both over and healthy in the last window")
            if record.over_streak >= self._settings.probation_windows and not record.on_probation:
                raise InvariantViolation(f"{iid}: over for long and not on probation")
            if record.paused and record.window is not None:
                raise InvariantViolation(f"{iid}: paused with an open window")
            if record.window is not None and not record.window.samples:
                raise InvariantViolation(f"{iid}: a window without a sample")
            if record.over_streak and not record.healthy_scores:
                raise InvariantViolation(f"{iid}: over without a baseline")

    # --- inside ----------------------------------------------------------------------------------

    def _record(self, iid: str) -> _Record:
        record = self._records.get(iid)
        if record is None:
            record = self._records[iid] = _Record()
        return record

    def _residual(self, seen: DecodeSeen) -> float:
        """Observed ÷ predicted interval; without a profile the observed one, seconds."""
        profile = self._profiles.get(seen.iid)
        if profile is None:
            return seen.interval_s
        return seen.interval_s / (
            profile.tpot_slope * seen.kv_tokens
            + profile.tpot_request_slope * seen.sequences
            + profile.tpot_intercept
        )


class _Peers:
    """Everybody with a fresh score, once a close: hundreds of windows may end in one pass."""

    __slots__ = ("_over", "_scores")

    def __init__(self, scores: list[float], over: int) -> None:
        """`scores` ascending; `over`: how many of them."""
        self._scores = scores
        self._over = over

    def surge(self, score: float, *, relative_band: float) -> bool:
        """Of one that is over: half of the others or more are too, and it does not stand out among them."""
        others = len(self._scores) - 1
        if others + 1 < PEERS_FROM or 2 * (self._over - 1) < others:
            return False
        return score <= relative_band * self._median_without(score)

    def _median_without(self, score: float) -> float:
        """The median of the others, by places: the list is not copied."""
        own, others = bisect_left(self._scores, score), len(self._scores) - 1
        low, high = (self._scores[place + (place >= own)] for place in ((others - 1) // 2, others // 2))
        return (low + high) / 2


@dataclass(slots=True)
class _Window:
    began: float
    samples: int = 0
    total: float = 0.0


class _Record:
    """What one engine showed."""

    __slots__ = (
        "healthy_scores", "healthy_streak", "on_probation", "over", "over_streak", "paused", "pauses",
        "score", "scored", "scored_at", "seen_at", "undersampled", "window",
    )  # fmt: skip

    def __init__(self, scored: int = 0, undersampled: int = 0, *, pauses: int = 0) -> None:
        self.scored = scored
        self.undersampled = undersampled
        self.pauses = pauses
        self.paused = False
        self.window: _Window | None = None
        self.healthy_scores: deque[float] = deque(maxlen=HEALTHY_KEPT)
        self.healthy_streak = self.over_streak = 0
        self.on_probation = False
        self.score = 0.0
        self.seen_at = 0.0
        self.scored_at: float | None = None
        self.over = False

    @property
    def baseline(self) -> float:
        return median(self.healthy_scores) if self.healthy_scores else self.score

    def health(self, now: float) -> DriftHealth:
        ago_s = None if self.scored_at is None else now - self.scored_at
        return DriftHealth(self.scored, self.undersampled, ago_s, self.paused, self.pauses)
