"""policy/troubles.py: what is noted of an engine that gives no answer, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    CountFailed,
    Evidence,
    FailureClass,
    HealthProbed,
    InferenceProbed,
    LegAnswered,
    LegFailed,
    LegLeft,
    LegSucceeded,
    LivenessSwept,
    ProbeOutcome,
)
from narwhal.policy.troubles import Troubles

BAD, GOOD, INCONCLUSIVE = ProbeOutcome.BAD, ProbeOutcome.GOOD, ProbeOutcome.INCONCLUSIVE
FAILED = LegFailed("p0", Leg.DECODE, FailureClass.CONNECTION, "connection:lost", "lost")
COUNT = CountFailed("p0", FailureClass.TIMEOUT, "no answer")
SILENT: list[Evidence] = [
    FAILED,
    replace(FAILED, failure=FailureClass.TIMEOUT),
    COUNT,
    HealthProbed("p0", BAD),
    LivenessSwept("p0", BAD),
    InferenceProbed("p0", BAD),
]
NOT_SILENT: list[Evidence] = [
    replace(FAILED, failure=FailureClass.INFERENCE_STATUS),
    replace(FAILED, failure=FailureClass.OVERLOAD),
    replace(FAILED, failure=FailureClass.STREAM),
    HealthProbed("p0", GOOD),
    HealthProbed("p0", INCONCLUSIVE),
    HealthProbed("p0", BAD, streaming=True),
    LivenessSwept("p0", GOOD),
    LivenessSwept("p0", BAD, streaming=True),
    InferenceProbed("p0", GOOD),
    InferenceProbed("p0", INCONCLUSIVE),
    LegSucceeded("p0", Leg.PREFILL),
    LegAnswered("p0", Leg.PREFILL, 400),
    LegLeft("p0", Leg.PREFILL, sent_at=1.0, limit_s=120.0),
]


@pytest.mark.parametrize("evidence", SILENT)
def test_the_want_of_an_answer_is_noted_and_good_news_do_not_end_it(evidence: Evidence) -> None:
    troubles = Troubles()
    troubles.note(evidence, 10.0)
    for good in NOT_SILENT:
        troubles.note(good, 11.0)
    assert [troubles.since("p0", at) for at in (0.0, 10.0, 10.1)] == [True, True, False]
    assert not troubles.since("p1", 0.0)


@pytest.mark.parametrize("evidence", NOT_SILENT)
def test_an_answer_of_any_kind_is_not(evidence: Evidence) -> None:
    troubles = Troubles()
    troubles.note(evidence, 10.0)
    assert not troubles.since("p0", 0.0)
