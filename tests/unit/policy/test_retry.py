"""Which failures another attempt may follow."""

from __future__ import annotations

import pytest

from narwhal import errors
from narwhal.policy.retry import RetryPolicy, retriable


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (errors.EngineUnreachable("x"), True),
        (errors.EngineTimeout("x", kind="first_token"), True),
        (errors.StreamBroken("x", kind="error_object"), True),
        (errors.StreamBroken("x", kind="early_end"), True),
        (errors.HandoffInvalid("x"), True),
        (errors.HandoffExpired("x"), True),
        *((errors.EngineRefused("x", status=status), True) for status in (408, 429, 500, 502, 503)),
        *(
            (errors.EngineRefused("x", status=status), False)
            for status in (400, 401, 403, 404, 409, 413, 422)
        ),
        (errors.PoolExhausted("x"), False),
        (errors.RequestExpired("x"), False),
        (errors.NotOwner("x"), False),
        (errors.NoEngine("x"), False),
    ],
)
def test_only_what_another_engine_could_do_better_is_tried_again(error, again):
    assert retriable(error) is again
    assert RetryPolicy(2).another(1, error) is again


def test_attempts_are_bounded():
    error = errors.EngineUnreachable("x")
    assert not RetryPolicy(1).another(1, error)
    assert RetryPolicy(3).another(2, error)
    assert not RetryPolicy(3).another(3, error)
