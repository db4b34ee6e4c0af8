"""What was another's doing is taken back from an engine: streaks and quarantine, once, no more."""

from __future__ import annotations

import pytest

from narwhal.model.engine import Leg
from narwhal.model.evidence import CountFailed, Evidence, FailureClass, LegFailed, LegSucceeded
from tests.unit.policy.test_blame import (
    ENGINES,
    GOOD,
    NOW,
    STREAM,
    Court,
    crossed,
    decode_failed,
    prefill_failed,
)

# --- streaks ---


def lost(iid: str, peer: str, request: bytes) -> LegFailed:
    return LegFailed(
        iid, Leg.DECODE, STREAM, "stream:first_token", "no token came", peer=peer, request=request
    )


def test_a_failure_that_was_the_pairs_is_not_taken_back_from_the_engine_for_its_request() -> None:
    court = Court()
    court(lost("d0", "p0", b"1"), lost("d0", "p0", b"2"), crossed("p1", "d0"), crossed("p0", "d1"))
    court(lost("d0", "p0", b"X"))
    assert (court.avoided, court.streaks) == ({"p0": {"d0"}}, {})
    court(lost("d0", "p1", b"Y"), lost("d0", "p1", b"Z"))
    assert court.streaks == {"d0": {"stream": 2}}
    court(lost("d1", "p2", b"X"))
    assert court.streaks == {"d0": {"stream": 2}}, "X was never held against it"


def test_nor_is_one_that_was_taken_back_for_the_pair_before() -> None:
    court = Court()
    court(lost("d0", "p0", b"X"), lost("d0", "p0", b"2"))
    court.blame.edges.probed("p1", "d0", outcome=GOOD, now=NOW)
    court(crossed("p0", "d1"), lost("d0", "p0", b"3"))
    assert (court.avoided, court.streaks) == ({"p0": {"d0"}}, {})
    court(lost("d0", "p1", b"Y"), lost("d0", "p1", b"Z"))
    court(lost("d1", "p2", b"X"))
    assert court.streaks == {"d0": {"stream": 2}}


def test_nor_one_that_convicted_its_producer() -> None:
    court = Court()
    court(lost("d0", "p0", b"1"), lost("d0", "p0", b"2"), lost("d1", "p0", b"X"))
    assert (court.held, court.streaks) == ({"p0": "inference"}, {})
    court(lost("d1", "p1", b"Y"), lost("d1", "p1", b"Z"), lost("d0", "p1", b"V"))
    court(lost("d2", "p2", b"X"))
    court(lost("d2", "p2", b"1"))
    assert court.streaks == {"d0": {"stream": 1}, "d1": {"stream": 2}}


def test_what_was_taken_back_for_a_producer_is_not_taken_back_for_a_pair_too() -> None:
    court = Court()
    court(lost("d0", "p0", b"1"), lost("d0", "p0", b"2"), lost("d1", "p0", b"3"))
    assert court.streaks == {}
    court(lost("d0", "p2", b"Y"), lost("d0", "p2", b"Z"))
    court.blame.edges.probed("p1", "d0", outcome=GOOD, now=NOW)
    court.blame.edges.probed("p0", "d2", outcome=GOOD, now=NOW)
    court(lost("d0", "p0", b"4"))
    assert (court.avoided, court.streaks) == ({"p0": {"d0"}}, {"d0": {"stream": 2}})


# --- quarantines ---


def busy(iid: str) -> LegFailed:
    return LegFailed(iid, Leg.PREFILL, FailureClass.OVERLOAD, "overload:429", "busy")


@pytest.mark.parametrize("between", [busy("p0"), LegSucceeded("p0", Leg.PREFILL)])
@pytest.mark.parametrize("after", [True, False])
def test_its_quarantine_is_taken_back_whatever_else_the_engine_showed(between: Evidence, after: bool) -> None:
    court = Court(failure_quarantine_s=60.0)
    court(*[prefill_failed("p0", b"poison"), between][:: 1 if after else -1])
    assert court.held == {"p0": "quarantine"}
    court(prefill_failed("p1", b"poison"))
    assert court.held == {}
    assert court.judgement.standings.eligible(NOW) == set(ENGINES)


def test_its_quarantine_is_taken_back_where_its_token_count_had_counted() -> None:
    court = Court(failure_quarantine_s=60.0)
    late = CountFailed("p0", FailureClass.TIMEOUT, "no answer", b"poison")
    way = (Leg.PREFILL, FailureClass.TIMEOUT, "timeout:read", "no answer")
    court(late, LegFailed("p0", *way, request=b"poison", again=True))
    assert court.held == {"p0": "quarantine"}
    court(LegFailed("p1", *way, request=b"poison"))
    assert (court.held, court.streaks) == ({}, {})


def test_what_a_pair_brought_is_taken_back_and_what_the_consumer_did_lasts_for_its_own_time() -> None:
    court = Court(failure_quarantine_s=60.0)
    court(prefill_failed("d0", b"own"))
    court.now += 10.0
    court(decode_failed("d0", "p0", b"1"), decode_failed("d0", "p0", b"2", STREAM))
    assert court.judgement.standings.holds(court.now)["d0"].remaining_s == 60.0
    court(crossed("p1", "d0"), crossed("p0", "d1"), decode_failed("d0", "p0", b"3"))
    assert court.avoided == {"p0": {"d0"}}
    assert court.judgement.standings.holds(court.now)["d0"].remaining_s == 50.0
    assert "d0" in court.judgement.standings.eligible(court.now + 50.0)
