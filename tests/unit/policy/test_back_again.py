"""An engine that is readmitted begins anew: what it answered before is held against nobody."""

from __future__ import annotations

from narwhal.model.engine import Leg
from narwhal.model.evidence import Check, FailureClass, LegAnswered, LegFailed, Validated
from tests.unit.policy.test_blame import NOW, Court


def readmitted(court: Court) -> None:
    lost = LegFailed("p0", Leg.PREFILL, FailureClass.CONNECTION, "connection:connect", "gone")
    court(lost, lost, lost)
    assert court.out == ("p0",)
    court(Validated("p0", (Check("health", "passed"),)))
    assert court.out == ()


def test_what_it_refused_before_it_was_readmitted_counts_no_longer() -> None:
    court = Court()
    answers = [LegAnswered("p0", Leg.PREFILL, 401, bytes([number])) for number in range(5)]
    court(*answers[:2])
    readmitted(court)
    court(*answers[2:4])
    assert court.held == {}
    court(answers[4])
    assert court.held == {"p0": "inference"}


def test_its_429s_from_before_it_was_readmitted_count_no_longer() -> None:
    court = Court()
    busy = LegFailed("p0", Leg.PREFILL, FailureClass.OVERLOAD, "overload:429", "busy")
    for after_s in (0, 12, 24):
        court.now = NOW + after_s
        court(busy)
    readmitted(court)
    court.now = NOW + 36
    court(busy)
    assert court.held == {}
