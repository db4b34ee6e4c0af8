from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.policy.cadence import Cadence


def test_the_first_pass_is_due_at_once() -> None:
    assert Cadence(interval_s=1.0, start=10.0).delay_s(10.0) == 0.0


def test_the_time_of_a_pass_is_taken_off_the_wait() -> None:
    cadence = Cadence(interval_s=1.0, start=10.0)
    cadence.delay_s(10.0)
    assert cadence.delay_s(10.25) == pytest.approx(0.75)


def test_a_pass_that_ran_over_is_followed_at_once_and_the_grid_stays() -> None:
    cadence = Cadence(interval_s=1.0, start=10.0)
    cadence.delay_s(10.0)
    assert cadence.delay_s(11.5) == 0.0
    assert cadence.delay_s(11.6) == pytest.approx(0.4)


def test_missed_instants_are_skipped_and_counted() -> None:
    cadence = Cadence(interval_s=1.0, start=10.0)
    cadence.delay_s(10.0)
    assert cadence.delay_s(14.5) == 0.0
    assert cadence.skipped == 3
    assert cadence.delay_s(14.5) == pytest.approx(0.5)


@given(durations=st.lists(st.floats(0.0, 0.9), min_size=1, max_size=200))
def test_passes_shorter_than_the_interval_never_drift(durations: list[float]) -> None:
    cadence = Cadence(interval_s=1.0, start=0.0)
    now = 0.0
    for number, duration in enumerate(durations):
        now += cadence.delay_s(now)
        assert now == pytest.approx(number)
        now += duration
