"""engine/faults.py: each row of the table of failures.md section 2."""

from __future__ import annotations

import pytest

from narwhal.engine.faults import classify
from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    HandoffInvalid,
    PoolExhausted,
    StreamBroken,
)
from narwhal.model.evidence import FailureClass

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
]


@pytest.mark.parametrize(("error", "expected"), TABLE)
def test_class_of_a_fault(error: EngineError, expected: FailureClass | None) -> None:
    assert classify(error) is expected


def test_every_exception_of_the_engine_tree_has_a_row() -> None:
    assert {type(error) for error, _ in TABLE} == set(EngineError.__subclasses__())
