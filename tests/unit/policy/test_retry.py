"""Which failures another attempt may follow, when it begins, and what it costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal import errors
from narwhal.errors import NarwhalError
from narwhal.policy.retry import RetryPolicy, retriable
from tests.support.settings import serving_settings

LOST = errors.EngineUnreachable("x")


def policy(**settings: float) -> RetryPolicy:
    return RetryPolicy(serving_settings(**{"max_attempts": 3, **settings}))


def pause(
    retry: RetryPolicy, made: int = 1, *, error: NarwhalError = LOST, left_s: float = 60.0, draw: float = 0.5
) -> float | None:
    return retry.pause_before_retry(made, error, left_s=left_s, draw=draw)


# --- what is tried again ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (errors.EngineUnreachable("x"), True),
        *((errors.EngineTimeout("x", kind=kind), True) for kind in ("connect", "read", "first_token")),
        (errors.StreamBroken("x", kind="error_object"), True),
        (errors.StreamBroken("x", kind="early_end"), True),
        (errors.HandoffInvalid("x"), True),
        (errors.HandoffExpired("x"), True),
        *((errors.EngineRefused("x", status=status), True) for status in (408, 429, 500, 502, 503, 504, 599)),
        *(
            (errors.EngineRefused("x", status=status), False)
            for status in (400, 401, 403, 404, 409, 413, 422)
        ),
        (errors.StaleEpoch("x", epoch=9, error={}), False),
        (errors.SuspectedPoison("x"), False),
        (errors.PoolExhausted("x"), False),
        (errors.RequestExpired("x"), False),
        (errors.QueueExpired("x"), False),
        (errors.NotOwner("x"), False),
        (errors.NoEngine("x"), False),
        (errors.BadRequest("x"), False),
    ],
)
def test_only_what_another_engine_could_do_better_is_tried_again(error, again):
    assert retriable(error) is again
    assert (pause(policy(), error=error) is not None) is again


def test_attempts_are_bounded():
    assert pause(policy(max_attempts=1)) is None
    assert pause(policy(max_attempts=3), 2) is not None
    assert pause(policy(max_attempts=3), 3) is None


# --- when ------------------------------------------------------------------------------------------


def test_the_bound_of_the_pause_doubles_from_the_base_up_to_the_cap():
    retry = policy(max_attempts=9, retry_base_s=0.1, retry_cap_s=0.5)
    pauses = [pause(retry, made, draw=0.5) for made in (1, 2, 3, 4, 5)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.25, 0.25])


def test_the_jitter_is_full():
    assert pause(policy(), draw=0.0) == 0.0
    assert pause(policy(retry_base_s=0.1), draw=0.999) == pytest.approx(0.0999)


def test_a_pause_that_would_end_at_the_deadline_is_no_retry_and_costs_nothing():
    retry = policy(retry_base_s=0.1, retry_budget=5.0)
    assert pause(retry, draw=0.5, left_s=0.05) is None
    assert retry.credits == 5.0
    assert pause(retry, draw=0.5, left_s=0.06) == pytest.approx(0.05)


# --- what it costs ---------------------------------------------------------------------------------


def test_a_retry_takes_one_credit_and_needs_a_whole_one():
    retry = policy(retry_budget=2.5)
    assert pause(retry) is not None
    assert pause(retry) is not None
    assert retry.credits == 0.5
    assert pause(retry) is None
    assert retry.credits == 0.5


def test_without_a_budget_there_are_no_retries():
    retry = policy(retry_budget=0.0)
    retry.served()
    assert (retry.credits, pause(retry)) == (0.0, None)


def test_what_is_not_retried_costs_nothing():
    retry = policy(retry_budget=2.0)
    pause(retry, error=errors.EngineRefused("x", status=400))
    pause(retry, 3)
    assert retry.credits == 2.0


def test_ten_successes_at_a_tenth_are_one_credit():
    retry = policy(retry_budget=1.0, retry_replenish=0.1)
    assert pause(retry) is not None
    for _ in range(9):
        retry.served()
    assert pause(retry) is None
    retry.served()
    assert pause(retry) is not None


def test_credits_never_go_above_the_budget():
    retry = policy(retry_budget=1.5, retry_replenish=1.0)
    retry.served()
    assert retry.credits == 1.5


@given(
    st.floats(0, 20),
    st.floats(0, 1),
    st.lists(st.booleans(), max_size=200),
)
def test_there_are_never_more_retries_than_credits(budget, replenish, steps):
    retry = policy(retry_budget=budget, retry_replenish=replenish)
    retries = served = 0
    for success in steps:
        if success:
            retry.served()
            served += 1
        elif pause(retry) is not None:
            retries += 1
        assert 0.0 <= retry.credits <= budget
        assert retries <= budget + served * replenish + 1e-6
