"""Token counts that do not come: what they say of an engine's legs (failures.md sections 2 and 9)."""

from __future__ import annotations

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    CountFailed,
    FailureClass,
    HealthProbed,
    LegFailed,
    LegSucceeded,
    ProbeOutcome,
)
from tests.unit.policy.test_blame import STATUS, Court, prefill_failed

CONNECTION, TIMEOUT = FailureClass.CONNECTION, FailureClass.TIMEOUT


def refused(iid: str = "p0") -> CountFailed:
    return CountFailed(iid, CONNECTION, "token count: connect: refused")


def late(iid: str = "p0", request: bytes = b"one") -> CountFailed:
    return CountFailed(iid, TIMEOUT, "token count: no whole answer in 2.0 s", request)


def leg(iid: str, failure: FailureClass, way: str, request: bytes = b"", *, again: bool = False) -> LegFailed:
    return LegFailed(iid, Leg.PREFILL, failure, way, "late", request=request, again=again)


def test_an_engine_that_accepts_no_connection_is_out_after_as_many_counts_as_legs() -> None:
    court = Court()
    court(refused(), refused())
    assert court.out == ()
    court(refused())
    assert court.out == ("p0",)


def test_counts_without_an_answer_ask_for_a_health_check_and_no_more() -> None:
    court = Court()
    effects = court(late(request=b"1"), late(request=b"2"), late(request=b"3"))
    assert [(one.kind, one.iid) for one in effects if isinstance(one, ProbeWanted)] == [
        (ProbeKind.HEALTH, "p0")
    ]
    assert (court.held, court.out) == ({}, ())
    court(LegSucceeded("p0", Leg.PREFILL), HealthProbed("p0", ProbeOutcome.GOOD))
    assert court.streaks == {}


def test_a_failed_count_brings_no_quarantine() -> None:
    court = Court(failure_quarantine_s=30.0)
    court(refused(), late())
    assert court.held == {}
    assert court.streaks == {"p0": {"connection": 1, "timeout": 1}}


def test_one_request_counts_once_on_one_engine() -> None:
    court = Court()
    court(refused(), leg("p0", CONNECTION, "connection:connect", again=True))
    assert court.streaks == {"p0": {"connection": 1}}
    court(late(), leg("p0", TIMEOUT, "timeout:read", b"one", again=True))
    assert court.streaks == {"p0": {"connection": 1, "timeout": 1}}


def test_a_leg_that_was_counted_before_still_shows_that_its_request_is_poison() -> None:
    court = Court()
    court(late("p0"), leg("p0", TIMEOUT, "timeout:read", b"one", again=True))
    court(leg("p1", TIMEOUT, "timeout:read", b"one"))
    assert court.streaks == {}


def test_a_poisoned_request_takes_its_counts_back_too() -> None:
    court = Court()
    for iid in ("p0", "p1", "p2"):
        court(late(iid, b"poison"), prefill_failed(iid, b"poison"))
    assert court.streaks == {}
    assert court.held == {}


def test_and_what_it_meets_after_that_counts_for_nobody() -> None:
    court = Court()
    court(prefill_failed("p0", b"poison"), prefill_failed("p1", b"poison"))
    for _ in range(4):
        court(late("p2", b"poison"), prefill_failed("p2", b"poison"))
    assert court.streaks == {}
    court(late("p2", b"another"))
    assert court.streaks == {"p2": {"timeout": 1}}


def test_counts_alone_suspect_no_request() -> None:
    """It may be served well: a slow tokenizer is no failed request."""
    court = Court()
    for iid in ("p0", "p1", "p2"):
        assert court(late(iid, b"long")) == []
    assert court.streaks == {iid: {"timeout": 1} for iid in ("p0", "p1", "p2")}


def test_a_leg_that_failed_otherwise_counts_beside_the_count() -> None:
    court = Court()
    court(late(), prefill_failed("p0", b"one"))
    assert court.streaks == {"p0": {STATUS.value: 1, "timeout": 1}}
