"""Decode drift, sentence by sentence (failures.md section 6). Windows of 10 s, a sample a second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.errors import InvariantViolation
from narwhal.model.decoding import DecodeSeen, DriftHealth
from narwhal.model.engine import EngineProfile
from narwhal.model.settings import HealthSettings
from narwhal.policy.drift import Drift, DriftVerdict, DriftWord

SETTINGS = HealthSettings(
    window_s=10.0,
    drift_band=2.0,
    relative_band=1.5,
    min_samples=3,
    probation_windows=3,
    evict_windows=5,
    recovery_windows=2,
    probation_penalty_s=1.5,
)
WINDOW = 10
PROBATION, ENDED, EJECTION = DriftWord.PROBATION, DriftWord.PROBATION_ENDED, DriftWord.EJECTION


class Bench:
    """A drift machine and its time. `window` runs one whole window of all the engines that it names."""

    def __init__(self, settings: HealthSettings = SETTINGS, **profiles: EngineProfile) -> None:
        self.drift = Drift(settings, profiles)
        self.now = 100.0

    def see(self, iid: str, interval_s: float, *, sequences: float = 1.0, kv_tokens: float = 100.0) -> None:
        self.drift.observe(DecodeSeen(iid, interval_s, sequences, kv_tokens), self.now)

    def pass_ends(self) -> list[DriftVerdict]:
        self.now += 1.0
        verdicts = list(self.drift.close(self.now))
        self.drift.check_invariants()
        return verdicts

    def window(self, samples: int = WINDOW, **intervals: float) -> list[tuple[str, DriftWord]]:
        """`intervals` of the engines in the first `samples` passes of one window; who got which verdict."""
        verdicts = []
        for number in range(WINDOW):
            for iid, interval_s in intervals.items() if number < samples else ():
                self.see(iid, interval_s)
            verdicts += self.pass_ends()
        return [(one.iid, one.word) for one in verdicts]

    def windows(self, count: int, **intervals: float) -> list[tuple[str, DriftWord]]:
        return [verdict for _ in range(count) for verdict in self.window(**intervals)]

    def health(self, iid: str = "d0") -> DriftHealth:
        return self.drift.health(self.now)[iid]


# --- windows and scores ----------------------------------------------------------------------------


def test_a_window_closes_after_window_s_and_not_before() -> None:
    bench = Bench()
    for _ in range(WINDOW - 1):
        bench.see("d0", 0.02)
        bench.pass_ends()
    assert bench.health().scored == 0
    bench.see("d0", 0.02)
    bench.pass_ends()
    assert bench.health().scored == 1


def test_fewer_samples_than_min_samples_but_at_least_one_are_undersampled() -> None:
    bench = Bench()
    bench.window(samples=2, d0=0.02)
    assert (bench.health().scored, bench.health().undersampled) == (0, 1)
    bench.window(samples=3, d0=0.02)
    assert (bench.health().scored, bench.health().undersampled) == (1, 1)


def test_an_engine_without_a_sample_has_neither_scored_nor_undersampled_windows() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    bench.windows(5)
    assert (bench.health().scored, bench.health().undersampled) == (1, 0)


def test_undersampled_windows_drop_their_samples_and_carry_baseline_and_streak_over() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    assert bench.windows(2, d0=0.05) == []
    bench.window(samples=2, d0=9.0)  # would be over by far, or healthy, if it counted
    bench.window(samples=2, d0=0.001)
    assert bench.window(d0=0.05) == [("d0", PROBATION)], "the third over in a row of scored windows"


@pytest.mark.parametrize(("first", "verdicts"), [(5.5, []), (5.75, [("d0", PROBATION)])])
def test_the_score_is_the_mean_of_the_samples(first: float, verdicts: list[tuple[str, DriftWord]]) -> None:
    """Nine samples of 0.5 and one of 5.5 have the mean 1.0: at the band, not over it."""
    bench = Bench()
    bench.window(d0=0.5)
    found = []
    for number in range(3 * WINDOW):
        bench.see("d0", first if number % WINDOW == 0 else 0.5)
        found += [(one.iid, one.word) for one in bench.pass_ends()]
    assert found == verdicts


def test_a_score_at_the_band_is_healthy_and_one_above_it_is_over() -> None:
    at, above = Bench(), Bench()
    for bench in (at, above):
        bench.window(d0=0.5)
    assert at.windows(10, d0=1.0) == []
    assert above.windows(3, d0=1.0625) == [("d0", PROBATION)]


def test_the_first_scored_window_is_the_first_baseline_however_slow_it_is() -> None:
    bench = Bench()
    assert bench.windows(9, d0=5.0) == []
    assert bench.windows(3, d0=11.0) == [("d0", PROBATION)]


def test_the_baseline_is_the_median_of_the_last_eight_healthy_scores() -> None:
    bench = Bench()
    bench.windows(5, d0=0.02)
    bench.windows(4, d0=0.03)  # the eight newest: four of 0.02 and four of 0.03, median 0.025
    within, over = 0.0499, 0.0501
    assert bench.windows(3, d0=over) == [("d0", PROBATION)]
    bench = Bench()
    bench.windows(5, d0=0.02)
    bench.windows(4, d0=0.03)
    assert bench.windows(6, d0=within) == []


def test_scores_over_the_band_never_join_the_baseline() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    bench.windows(20, d0=0.06)
    assert bench.windows(2, d0=0.02) == [("d0", ENDED)]
    assert bench.windows(3, d0=0.041) == [("d0", PROBATION)]


# --- residuals -------------------------------------------------------------------------------------


def profile(iid: str) -> EngineProfile:
    return EngineProfile(iid, 0.0, 0.001, 0.0, tpot_slope=1e-5, tpot_request_slope=1e-3, tpot_intercept=0.01)


def test_the_residual_is_the_observed_interval_by_the_predicted_one() -> None:
    bench = Bench(d0=profile("d0"))

    def window(interval_s: float, sequences: float, kv_tokens: float) -> list[DriftWord]:
        verdicts = []
        for _ in range(WINDOW):
            bench.see("d0", interval_s, sequences=sequences, kv_tokens=kv_tokens)
            verdicts += bench.pass_ends()
        return [verdict.word for verdict in verdicts]

    window(0.021, 1, 1000)  # predicted 0.01 + 0.001 + 0.01 = 0.021: a residual of 1
    for _ in range(5):  # ten times slower under load for which the profile predicts it: 0.21
        assert window(0.21, 50, 15_000) == []
    assert [window(0.063, 1, 1000) for _ in range(3)] == [[], [], [PROBATION]]


def test_without_a_profile_the_residual_is_the_interval_itself() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    for _ in range(3):
        for _ in range(WINDOW):
            bench.see("d0", 0.05, sequences=100, kv_tokens=1e6)
            last = bench.pass_ends()
    assert [verdict.word for verdict in last] == [PROBATION]


# --- verdicts --------------------------------------------------------------------------------------


def test_probation_windows_in_a_row_give_probation_once() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    assert bench.windows(2, d0=0.05) == []
    assert bench.drift.probation == ()
    assert bench.window(d0=0.05) == [("d0", PROBATION)]
    assert bench.drift.probation == ("d0",)
    assert bench.window(d0=0.05) == []


def test_a_healthy_window_between_starts_the_count_of_over_anew() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    for _ in range(4):
        assert bench.windows(2, d0=0.05) == []
        assert bench.window(d0=0.02) == []


def test_evict_windows_in_a_row_request_the_ejection_in_each_window_from_then_on() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    assert bench.windows(4, d0=0.05) == [("d0", PROBATION)]
    assert bench.window(d0=0.05) == [("d0", EJECTION)]
    assert bench.window(d0=0.05) == [("d0", EJECTION)], "a refused request is made again"
    assert bench.window(d0=0.02) == []


def test_with_equal_limits_the_engine_is_on_probation_where_the_ejection_is_refused() -> None:
    bench = Bench(replace(SETTINGS, probation_windows=2, evict_windows=2))
    bench.window(d0=0.02)
    assert bench.windows(2, d0=0.05) == [("d0", PROBATION), ("d0", EJECTION)]
    assert bench.drift.probation == ("d0",)


def test_recovery_windows_healthy_in_a_row_end_probation() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    bench.windows(3, d0=0.05)
    assert bench.window(d0=0.02) == []
    assert bench.window(d0=0.05) == [], "over again: the healthy ones count anew"
    assert bench.window(d0=0.02) == []
    assert bench.drift.probation == ("d0",)
    assert bench.window(d0=0.02) == [("d0", ENDED)]
    assert bench.drift.probation == ()


def test_an_engine_on_probation_that_shows_nothing_for_a_window_is_on_trial() -> None:
    """The penalty may have taken all its work: it must get some to show that it has recovered."""
    bench = Bench()
    bench.window(d0=0.02)
    bench.windows(3, d0=0.05)
    assert bench.drift.penalised(bench.now) == ("d0",)
    for _ in range(WINDOW - 2):
        bench.pass_ends()
    assert bench.drift.penalised(bench.now) == ("d0",)
    bench.pass_ends()
    assert (bench.drift.probation, bench.drift.penalised(bench.now)) == (("d0",), ())
    bench.see("d0", 0.02)
    assert bench.drift.penalised(bench.now) == ("d0",), "work has come: the trial is over"
    bench.drift.pause("d0", bench.now + 5.0)
    assert bench.drift.penalised(bench.now + 14.0) == ("d0",), "mixed work is work"


def test_verdicts_give_their_reason_in_one_sentence() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    bench.windows(2, d0=0.05)
    for _ in range(WINDOW):
        bench.see("d0", 0.05)
        verdicts = bench.pass_ends()
    assert [verdict.reason for verdict in verdicts] == [
        "its decode interval is 2.5 times its healthy one, over 2 for 3 windows in a row"
    ]


def test_a_confirmed_ejection_drops_the_history() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    bench.windows(3, d0=0.05)
    bench.see("d0", 0.05)
    bench.drift.forget("d0")
    assert bench.drift.probation == ()
    assert bench.health() == DriftHealth(scored=4)
    assert bench.windows(10, d0=0.05) == [], "what comes back is measured by itself"


def test_forgetting_an_engine_that_showed_nothing_is_nothing() -> None:
    bench = Bench()
    bench.drift.forget("d9")
    assert bench.drift.health(bench.now) == {}


# --- the peer test ---------------------------------------------------------------------------------


def test_a_fleet_wide_surge_gives_no_verdict() -> None:
    bench = Bench()
    bench.window(d0=0.02, d1=0.02, d2=0.02)
    assert bench.windows(10, d0=0.06, d1=0.06, d2=0.06) == []
    assert bench.drift.probation == ()


def test_half_of_the_others_over_is_a_surge_and_fewer_are_none() -> None:
    half = Bench()
    half.window(d0=0.02, d1=0.02, d2=0.02)
    assert half.windows(6, d0=0.05, d1=0.05, d2=0.04) == [], "one of two others; median of them 0.045"
    fewer = Bench()
    fewer.window(d0=0.02, d1=0.02, d2=0.02, d3=0.02)
    assert fewer.windows(3, d0=0.05, d1=0.05, d2=0.04, d3=0.04) == [("d0", PROBATION), ("d1", PROBATION)]


def test_with_two_scored_engines_there_is_no_peer_test() -> None:
    bench = Bench()
    bench.window(d0=0.02, d1=0.02)
    assert bench.windows(3, d0=0.05, d1=0.05) == [("d0", PROBATION), ("d1", PROBATION)]


def test_an_engine_that_stands_out_in_a_surge_gets_its_verdict() -> None:
    bench = Bench()
    bench.window(d0=0.02, d1=0.02, d2=0.02)
    assert bench.windows(3, d0=0.10, d1=0.06, d2=0.06) == [("d0", PROBATION)], "0.10 > 1.5 × 0.06"
    bench = Bench()
    bench.window(d0=0.02, d1=0.02, d2=0.02)
    assert bench.windows(3, d0=0.09, d1=0.06, d2=0.06) == [], "at the relative band it does not"


def test_a_relative_band_of_zero_turns_the_veto_off() -> None:
    bench = Bench(replace(SETTINGS, relative_band=0.0))
    bench.window(d0=0.02, d1=0.02, d2=0.02)
    assert [iid for iid, _ in bench.windows(3, d0=0.06, d1=0.06, d2=0.06)] == ["d0", "d1", "d2"]


def test_a_surge_leaves_the_streaks_as_they_were() -> None:
    bench = Bench()
    bench.window(d0=0.02, d1=0.02, d2=0.02)
    bench.windows(2, d0=0.05, d1=0.02, d2=0.02)
    bench.windows(4, d0=0.05, d1=0.05, d2=0.05)
    assert bench.window(d0=0.05, d1=0.02, d2=0.02) == [("d0", PROBATION)], "the third verdict of over"


def test_the_score_of_a_peer_counts_for_two_windows() -> None:
    """Windows of different engines do not close together."""
    bench = Bench(replace(SETTINGS, probation_windows=1))
    bench.window(d0=0.02, d1=0.02, d2=0.02)
    assert bench.window(d0=0.05, d1=0.05, d2=0.05) == []
    for _ in range(9):
        bench.pass_ends()
    assert bench.window(d0=0.05) == [], "the peers were scored 19 s ago"
    bench.pass_ends()
    assert bench.window(d0=0.05) == [("d0", PROBATION)]


def test_an_old_score_is_no_peer() -> None:
    bench = Bench()
    bench.window(d0=0.02, d1=0.02, d2=0.02)
    assert bench.windows(2, d0=0.05, d1=0.05, d2=0.05) == []
    bench.windows(3)  # nobody decodes
    assert bench.windows(3, d0=0.05) == [("d0", PROBATION)]


# --- prefill pauses --------------------------------------------------------------------------------


def test_local_prefill_work_pauses_scoring_and_the_window_starts_anew() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    for _ in range(8):
        bench.see("d0", 9.0)
        bench.pass_ends()
    bench.drift.pause("d0", bench.now)
    assert (bench.health().prefill_paused, bench.health().prefill_pauses) == (True, 1)
    assert not bench.drift.measuring("d0")
    bench.windows(2)
    assert bench.health().scored == 1
    for _ in range(WINDOW - 1):
        bench.see("d0", 0.02)
        bench.pass_ends()
        assert not bench.health().prefill_paused
    assert bench.health().scored == 1, "a whole window from the first pure observation on"
    bench.see("d0", 0.02)
    assert bench.pass_ends() == []
    assert (bench.health().scored, bench.health().undersampled) == (2, 0)


def test_a_pause_that_goes_on_is_one_pause() -> None:
    bench = Bench()
    for _ in range(3):
        bench.drift.pause("d0", bench.now)
        bench.pass_ends()
    bench.see("d0", 0.02)
    bench.drift.pause("d0", bench.now)
    assert bench.health().prefill_pauses == 2


def test_a_pause_keeps_baseline_and_probation() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    bench.windows(3, d0=0.05)
    bench.drift.pause("d0", bench.now)
    assert bench.drift.probation == ("d0",)
    assert bench.windows(2, d0=0.05) == [("d0", EJECTION)], "the fourth and the fifth against 0.02"


# --- what is shown ---------------------------------------------------------------------------------


def test_the_time_since_the_last_score_runs_on() -> None:
    bench = Bench()
    bench.see("d0", 0.02)
    assert bench.health().last_scored_s_ago is None
    bench.window(d0=0.02)
    bench.now += 7.0
    assert bench.health().last_scored_s_ago == 7.0
    bench.window(samples=1, d0=0.02)
    assert bench.health().last_scored_s_ago == 17.0, "an undersampled window is no score"


def test_an_account_that_contradicts_itself_is_a_bug() -> None:
    bench = Bench()
    bench.window(d0=0.02)
    bench.drift._records["d0"].over_streak = 1
    with pytest.raises(InvariantViolation, match="both over and healthy"):
        bench.drift.check_invariants()
