"""Counters of runs: exactly one outcome a request, merging never goes back or counts twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.errors import InvariantViolation
from narwhal.model.request import Counters, Outcome
from narwhal.policy.totals import Totals


def test_an_outcome_and_offered_are_counted_together():
    totals = Totals("run-a")
    for outcome in Outcome:
        totals.finished(outcome)
    totals.missed_slo()
    assert totals.own == Counters(
        served=1,
        failed=1,
        unserved=1,
        refused=1,
        rejected=1,
        expired=1,
        cancelled=1,
        invalid_requests=1,
        offered=7,
    )
    totals.check_invariants()


def test_the_version_grows_with_every_change():
    totals = Totals("run-a")
    totals.finished(Outcome.SERVED)
    totals.missed_slo()
    assert totals.version == 2
    totals.merge({"run-b": Counters(served=1, offered=1)})
    assert totals.version == 2


def test_the_total_is_the_sum_of_all_runs():
    totals = Totals("run-a")
    totals.finished(Outcome.SERVED)
    totals.merge({"base": Counters(served=10, offered=10), "run-b": Counters(failed=2, offered=2)})
    assert totals.total() == Counters(served=11, failed=2, offered=13)
    assert set(totals.vector()) == {"base", "run-a", "run-b"}


def test_an_old_answer_of_the_store_never_takes_a_count_back():
    totals = Totals("run-a")
    totals.finished(Outcome.SERVED)
    early = totals.vector()
    totals.finished(Outcome.SERVED)
    totals.merge(early)
    assert totals.own.served == 2


def test_offered_that_is_not_the_sum_of_outcomes_is_a_bug():
    totals = Totals("run-a")
    totals.merge({"run-a": Counters(offered=1)})
    with pytest.raises(InvariantViolation):
        totals.check_invariants()


COUNTS = st.builds(Counters, served=st.integers(0, 9), failed=st.integers(0, 9), offered=st.integers(0, 9))
RUNS = st.dictionaries(st.sampled_from(["base", "run-a", "run-b"]), COUNTS)


@given(first=RUNS, second=RUNS)
def test_merging_is_idempotent_and_independent_of_order(first, second):
    one, other = Totals("run-a"), Totals("run-a")
    for runs in (first, second, first):
        one.merge(runs)
    for runs in (second, first):
        other.merge(runs)
    empty = Counters()
    for run in {*first, *second}:
        assert one.vector().get(run, empty) == other.vector().get(run, empty)
    assert one.total() == other.total()
