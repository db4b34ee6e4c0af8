"""engine/dates.py: what the `date` header of an answer tells of how long it was under way."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from narwhal.engine.dates import EASE, GRAIN_S, AnswerDates, read_date

WALL_S = 1_790_000_000.0
QUICK_S = 0.01


class Engine:
    """Its clock shows `wall_s` when ours shows 0. It renews its date once in a second, as uvicorn does."""

    def __init__(self, dates: AnswerDates, *, wall_s: float = WALL_S, phase_s: float = 0.0) -> None:
        self._dates = dates
        self._phase_s = phase_s
        self.wall_s = wall_s
        self.rate = 1.0

    def header(self, at: float) -> str:
        wall_s = self.wall_s + at * self.rate
        renewed_at = wall_s - (wall_s - self._phase_s) % 1.0
        return formatdate(renewed_at, usegmt=True)

    def age(self, sent_at: float, written_at: float, *, now: float, came: float | None = None) -> float:
        """How old an answer looks that it wrote then. It is in our socket at `came`: `now` without it."""
        came = now if came is None else came
        written = self._dates.written("e0", self.header(written_at), sent_at=sent_at, came=came, now=now)
        assert sent_at <= written <= came
        return now - written

    def asked(self, at: float, *, takes_s: float = QUICK_S) -> float:
        """It answers after so long and the answer comes at once."""
        return self.age(at, at + takes_s, now=at + takes_s)


def known(**kwargs: float) -> Engine:
    """One whose answers of a minute have been seen, a second each."""
    engine = Engine(AnswerDates(), **kwargs)
    for second in range(60):
        engine.asked(second * 1.013)
    return engine


@pytest.mark.parametrize("wall_s", [WALL_S, WALL_S - 3600.0, WALL_S + 86400.0, 3.5])
@pytest.mark.parametrize("phase_s", [0.0, 0.4, 0.99])
def test_an_answer_that_comes_at_once_is_as_young_as_ever_whatever_the_clocks_show(wall_s, phase_s):
    engine = known(wall_s=wall_s, phase_s=phase_s)
    for tenth in range(600):
        assert engine.asked(100.0 + tenth * 0.37, takes_s=20.0) == 0.0


@pytest.mark.parametrize("wall_s", [WALL_S, WALL_S - 3600.0, WALL_S + 86400.0])
@pytest.mark.parametrize("delay_s", [4.0, 5.0, 30.0, 110.0])
def test_one_that_was_under_way_is_as_old_as_it_was_under_way(wall_s, delay_s):
    engine = known(wall_s=wall_s)
    for start in (100.3, 300.6, 500.9):
        engine.asked(start - 40.0)
        age_s = engine.age(start, start + 1.0, now=start + 1.0 + delay_s)
        assert delay_s - 1.5 - EASE * delay_s <= age_s <= 1.0 + delay_s


def test_it_is_never_older_than_the_question_nor_younger_than_the_socket_tells():
    engine = known()
    assert 28.0 <= engine.age(100.0, 100.01, now=130.0) <= 30.0
    assert engine.age(200.0, 229.0, now=230.0, came=210.0) == 20.0


def test_the_first_answer_of_an_engine_is_as_old_as_its_question():
    """There is nothing to tell by whether it was under way."""
    engine = Engine(AnswerDates())
    assert engine.asked(10.0, takes_s=7.0) == 7.0
    assert engine.asked(20.0, takes_s=7.0) == 0.0


def test_a_first_answer_that_was_under_way_misleads_until_the_first_that_was_not():
    engine = Engine(AnswerDates())
    assert engine.age(0.0, 1.0, now=31.0) == 31.0
    engine.asked(40.0)
    assert engine.age(50.0, 51.0, now=81.0) >= 29.0


def test_other_engines_tell_nothing_of_it():
    dates = AnswerDates()
    for at in range(5):
        dates.written("e1", Engine(dates, wall_s=7.0).header(at), sent_at=at, came=at, now=at)
    assert Engine(dates).asked(10.0, takes_s=7.0) == 7.0


@pytest.mark.parametrize("date", ["", "now", "Sun, 06 Nov 1994 08:49:37 CET", "Sunday, 06-Nov-94 08:49:37"])
def test_what_is_no_date_leaves_it_as_it_was(date):
    dates = AnswerDates()
    for at in range(5):
        assert dates.written("e0", date, sent_at=at, came=at + 0.5, now=at + 0.9) == at + 0.5


@pytest.mark.parametrize("step_s", [-86400.0, -30.0, -5.0, 5.0, 30.0, 86400.0])
def test_after_a_step_of_its_clock_the_first_quick_answer_makes_it_young_again(step_s):
    engine = known()
    engine.wall_s += step_s
    engine.asked(100.0)
    for tenth in range(100):
        assert engine.asked(101.0 + tenth * 0.37, takes_s=20.0) == 0.0
    assert engine.age(140.0, 141.0, now=171.0) >= 28.0


@pytest.mark.parametrize("step_s", [-86400.0, -30.0])
def test_a_step_back_without_a_quick_answer_costs_one_long_prefill(step_s):
    engine = known()
    engine.wall_s += step_s
    assert engine.asked(100.0, takes_s=26.0) == 26.0
    assert engine.asked(200.0, takes_s=26.0) == 0.0


def test_a_date_out_of_all_reason_is_forgotten_with_the_next_answers():
    engine = known()
    for wild in ("Fri, 31 Dec 9999 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"):
        engine._dates.written("e0", wild, sent_at=99.0, came=99.01, now=99.01)
        engine.asked(100.0)
        engine.asked(101.3)
        assert engine.asked(102.0, takes_s=5.0) == 0.0


def test_a_clock_that_is_slower_by_what_clocks_drift_never_makes_answers_old():
    engine = Engine(AnswerDates())
    engine.rate = 1.0 - 0.0005
    engine.asked(0.0)
    for step in range(1, 5000):
        assert engine.asked(step * 17.3, takes_s=5.0) == 0.0


def test_after_an_hour_without_any_answer_it_tells_less_and_no_wrong():
    engine = known()
    assert engine.age(3660.0, 3661.0, now=3691.0) == 0.0, "36 s are believed to be drift"
    engine.asked(3700.0)
    assert engine.age(3710.0, 3711.0, now=3741.0) >= 29.0


def test_at_random_no_answer_is_told_much_younger_than_it_is():
    """The lead is what the best answer made it: with one each few seconds it is good to a second."""
    rng = random.Random(9)
    engine, now = known(), 100.0
    for _ in range(5000):
        now += rng.uniform(0.0, 3.0)
        engine.asked(now)
        written = now + rng.uniform(0.0, 30.0)
        delay_s = rng.choice((0.0, 0.01, 1.0, 3.0, 40.0))
        age_s = engine.age(now, written, now=written + delay_s)
        assert age_s <= delay_s + GRAIN_S
        if delay_s > GRAIN_S:
            assert age_s >= delay_s - 1.5 - EASE * delay_s
        now = written + delay_s


def test_dates_are_read_as_the_standard_library_reads_them():
    rng = random.Random(1)
    for _ in range(200):
        second = rng.randrange(0, 4_000_000_000)
        assert read_date(formatdate(second, usegmt=True)) == second


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:60 GMT",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nuv 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08-49-37 GMT",
        "Sun, 06 Nov 1994 08:49:3x GMT",
        "Sun, 06 Nov 1994 08:49:37",
    ],
)
def test_what_is_no_moment_is_no_date(text):
    assert read_date(text) is None
