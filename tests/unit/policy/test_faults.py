"""policy/faults.py: each row of the table of failures.md section 2."""

from __future__ import annotations

import pytest

from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTaken,
    EngineTimeout,
    EngineUnreachable,
    HandoffInvalid,
    PoolExhausted,
    ProbeLate,
    PullFailed,
    StreamBroken,
    SuspectedPoison,
)
from narwhal.model.evidence import FailureClass
from narwhal.policy.faults import classify, may_be_the_requests, way_of

TABLE = [
    (EngineUnreachable("refused"), FailureClass.CONNECTION),
    (EngineTimeout("x", kind="connect"), FailureClass.TIMEOUT),
    (EngineTimeout("x", kind="read"), FailureClass.TIMEOUT),
    (EngineTimeout("x", kind="prefill"), FailureClass.TIMEOUT),
    (EngineTimeout("x", kind="first_token"), FailureClass.STREAM),
    (EngineTimeout("x", kind="silence"), FailureClass.STREAM),
    (StreamBroken("x", kind="early_end"), FailureClass.STREAM),
    (StreamBroken("x", kind="malformed"), FailureClass.STREAM),
    (StreamBroken("x", kind="bad_finish"), FailureClass.STREAM),
    (StreamBroken("x", kind="error_object"), FailureClass.INFERENCE_STATUS),
    (StreamBroken("x", kind="too_large"), None),
    (EngineRefused("x", status=408), FailureClass.OVERLOAD),
    (EngineRefused("x", status=429), FailureClass.OVERLOAD),
    (EngineRefused("x", status=500), FailureClass.INFERENCE_STATUS),
    (EngineRefused("x", status=503), FailureClass.INFERENCE_STATUS),
    (EngineRefused("x", status=400), None),
    (EngineRefused("x", status=401), None),
    (EngineRefused("x", status=409), None),
    (HandoffInvalid("x"), FailureClass.KV_HANDOFF),
    (PoolExhausted("x"), None),
    (SuspectedPoison("x"), None),
    (EngineTaken("x"), None),
    (ProbeLate("x"), None),
    (PullFailed("x"), None),
]


@pytest.mark.parametrize(("error", "expected"), TABLE)
def test_class_of_a_fault(error: EngineError, expected: FailureClass | None) -> None:
    assert classify(error) is expected


def test_every_exception_of_the_engine_tree_has_a_row() -> None:
    assert {type(error) for error, _ in TABLE} == set(EngineError.__subclasses__())


WAYS = [
    (EngineUnreachable("x", kind="connect"), "connection:connect", False),
    (EngineUnreachable("x"), "connection:lost", True),
    (EngineTimeout("x", kind="connect"), "timeout:connect", False),
    (EngineTimeout("x", kind="read"), "timeout:read", True),
    (EngineTimeout("x", kind="first_token"), "stream:first_token", True),
    (StreamBroken("x", kind="early_end"), "stream:early_end", True),
    (StreamBroken("x", kind="error_object"), "inference_status:error_object", True),
    (EngineRefused("x", status=503), "inference_status:503", True),
    (EngineRefused("x", status=429), "overload:429", False),
    (HandoffInvalid("x"), "kv_handoff", True),
]


@pytest.mark.parametrize(("error", "way", "the_requests"), WAYS)
def test_failures_are_compared_by_class_and_status_or_kind(
    error: EngineError, way: str, the_requests: bool
) -> None:
    failure = classify(error)
    assert failure is not None
    assert way_of(error, failure) == way
    assert may_be_the_requests(error, failure) is the_requests, "no request is to blame for a closed door"
