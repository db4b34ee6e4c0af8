"""What an engine that is out, held or another process did to the accounts of its partners."""

from __future__ import annotations

import pytest

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    EdgeProbed,
    Evidence,
    FailureClass,
    InferenceProbed,
    LegFailed,
    LegSucceeded,
    ProbeOutcome,
    ProcessSeen,
    Validated,
)
from tests.unit.policy.test_blame import BAD, GOOD, STATUS, STREAM, Court, crossed, decode_failed, probes

BACK = (Check("health", "passed"),)


def unreachable(iid: str) -> list[Evidence]:
    """It is ejected for it."""
    refused = FailureClass.CONNECTION
    return [LegFailed(iid, Leg.DECODE, refused, "connection:connect", "refused")] * 3


def lost(iid: str, peer: str, request: bytes = b"") -> LegFailed:
    return LegFailed(iid, Leg.DECODE, STREAM, "stream:first_token", "silent", peer=peer, request=request)


# --- a consumer's charges in the rows of its producers ---


def test_what_a_convicted_consumer_failed_is_not_held_against_its_producer() -> None:
    court = Court()
    court(lost("d0", "p0", b"1"), lost("d0", "p1", b"2"), lost("d0", "p0", b"3"))
    court(InferenceProbed("d0", BAD, "", "it fails alone"))
    assert court.out == ("d0",)
    court.now += 30
    court(lost("d1", "p0", b"4"))
    assert court.held == {}
    court(lost("d1", "p0", b"5"), lost("d2", "p0", b"6"))
    assert court.held == {"p0": "inference"}, "three of others are its own evidence"


def test_nor_while_it_is_held_and_its_probe_has_not_answered() -> None:
    court = Court()
    court(lost("d0", "p0"), lost("d0", "p1"), lost("d0", "p0"))
    assert court.held == {"d0": "inference"}
    court(lost("d1", "p0"))
    assert court.held == {"d0": "inference"}
    court(InferenceProbed("d0", GOOD, "p1"), lost("d1", "p0"))
    assert court.held == {"p0": "inference"}, "the probe acquitted the consumer: what it failed counts again"


def test_a_consumer_whose_probe_tells_nothing_is_a_witness_again() -> None:
    court = Court()
    court(lost("d0", "p0"), lost("d0", "p0"), lost("d0", "p0"))
    court(InferenceProbed("d0", ProbeOutcome.INCONCLUSIVE, "p0", "it is busy"), lost("d1", "p0"))
    assert court.held == {"d0": "inference", "p0": "inference"}


@pytest.mark.parametrize("back", [True, False])
def test_nor_what_it_failed_while_it_was_out(back: bool) -> None:
    court = Court()
    court(*unreachable("d0"), lost("d0", "p0"), lost("d0", "p0"))
    assert court.blame.edges.view(court.now) == ()
    court(*[Validated("d0", BACK)] * back)
    court(lost("d1", "p0"))
    assert court.held == {}


def test_nor_what_it_failed_before_it_was_ejected_for_something_else_and_readmitted() -> None:
    court = Court()
    court(lost("d0", "p0"), lost("d0", "p0"), *unreachable("d0"), Validated("d0", BACK))
    court(lost("d1", "p0"))
    assert (court.held, court.out) == ({}, ())


def test_nor_what_its_former_process_failed() -> None:
    court = Court()
    court(ProcessSeen("d0", 1.0), lost("d0", "p0"), lost("d0", "p0"), ProcessSeen("d0", 2.0))
    court(lost("d1", "p0"))
    assert court.held == {}


def test_nor_what_a_drained_one_failed() -> None:
    court = Court()
    court(lost("d0", "p0"))
    court.judgement.standings.set_drained(frozenset({"d0"}))
    court(lost("d0", "p0"), lost("d1", "p0"), lost("d1", "p0"))
    assert court.held == {}


def test_a_probe_of_an_edge_that_ends_when_an_end_is_out_tells_nothing_of_the_pair() -> None:
    court = Court()
    court(*unreachable("d0"), EdgeProbed("p0", "d0", BAD), EdgeProbed("d0", "p1", BAD))
    assert court.avoided == {}
    court(Validated("d0", BACK), EdgeProbed("p0", "d0", BAD))
    assert court.avoided == {"p0": {"d0"}}


# --- a producer's charges in the accounts of its consumers ---


def test_what_a_convicted_producers_kv_failed_is_not_held_against_its_consumers() -> None:
    court = Court()
    court(decode_failed("d0", "p0"), decode_failed("d0", "p0"), decode_failed("d1", "p0", failure=STREAM))
    court(decode_failed("d1", "p1", failure=STREAM))
    court(InferenceProbed("p0", BAD, consumer="d2"))
    assert court.out == ("p0",)
    assert court.streaks == {"d1": {"stream": 1}}
    court(decode_failed("d0", "p1"))
    assert (court.held, court.streaks["d0"]) == ({}, {"inference_status": 1})


def test_nor_what_fails_of_the_kv_that_it_left() -> None:
    court = Court(failure_quarantine_s=60.0)
    court(*unreachable("p0"), *[decode_failed("d0", "p0")] * 5)
    assert (court.held, court.streaks.get("d0")) == ({}, None)
    assert court.blame.edges.view(court.now) == ()
    silent = LegFailed("d0", Leg.DECODE, STREAM, "stream:silence", "silent", peer="p0")
    court(*[silent] * 3)
    assert court.held == {"d0": "inference"}, "its KV had come: that is no matter of the producer"


@pytest.mark.parametrize("goes", [unreachable("p0"), [ProcessSeen("p0", 2.0)]], ids=["out", "restarted"])
def test_the_quarantine_that_it_brought_ends(goes: list[Evidence]) -> None:
    court = Court(failure_quarantine_s=60.0)
    court(ProcessSeen("p0", 1.0), decode_failed("d0", "p0"))
    assert court.held == {"d0": "quarantine"}
    court(*goes)
    assert "d0" not in court.held


def test_what_the_kv_of_a_former_process_failed_is_not_held_against_its_consumers() -> None:
    court = Court()
    court(ProcessSeen("p0", 1.0), decode_failed("d0", "p0"))
    court(decode_failed("d0", "p1", failure=STREAM), ProcessSeen("p0", 2.0))
    assert court.streaks == {"d0": {"stream": 1}}
    court(*unreachable("p0"), decode_failed("d0", "p1"))
    assert (court.held, court.streaks["d0"]) == ({}, {"stream": 1, "inference_status": 1}), "and only once"


def test_a_consumer_that_fails_with_two_producers_and_works_with_a_third_is_probed_with_that_one() -> None:
    court = Court()
    court(crossed("p2", "d0"), lost("d0", "p0"), lost("d0", "p1"), lost("d0", "p0"))
    court(InferenceProbed("d0", BAD, "p0"))
    asked = probes(court(InferenceProbed("d0", BAD, "p1")))
    assert [(one.iid, one.producer) for one in asked] == [("d0", "p2")]
    assert court.out == ()
    court(InferenceProbed("d0", GOOD, "p2"))
    assert (court.held, court.out, court.avoided) == ({}, (), {"p0": {"d0"}, "p1": {"d0"}})


def test_and_is_out_if_it_fails_with_that_one_too() -> None:
    court = Court()
    court(crossed("p2", "d0"), lost("d0", "p0"), lost("d0", "p1"), lost("d0", "p0"))
    court(
        InferenceProbed("d0", BAD, "p0"), InferenceProbed("d0", BAD, "p1"), InferenceProbed("d0", BAD, "p2")
    )
    assert court.out == ("d0",)


def test_what_a_former_process_failed_to_pull_stays_its_own() -> None:
    court = Court()
    court(ProcessSeen("d0", 1.0), decode_failed("d0", "p0"), ProcessSeen("d0", 2.0))
    assert court.streaks == {"d0": {"inference_status": 1}}


@pytest.mark.parametrize("goes", [unreachable("p0"), [ProcessSeen("p0", 2.0)]], ids=["out", "restarted"])
def test_a_consumer_that_is_held_for_nothing_else_any_more_is_probed_at_once(goes: list[Evidence]) -> None:
    court = Court()
    court(ProcessSeen("p0", 1.0), *[decode_failed("d0", "p0")] * 3)
    court(InferenceProbed("d0", ProbeOutcome.INCONCLUSIVE, "p0", "connect: refused", number=1))
    asked = {one.iid: one for one in probes(court(*goes)) if one.kind is ProbeKind.INFERENCE}
    court(InferenceProbed("d0", GOOD, asked["d0"].producer, number=asked["d0"].number))
    assert court.held == {}


@pytest.mark.parametrize("goes", [unreachable("p0"), [ProcessSeen("p0", 2.0)]], ids=["out", "restarted"])
def test_one_that_is_held_for_more_waits_for_its_turn(goes: list[Evidence]) -> None:
    court = Court()
    court(ProcessSeen("p0", 1.0), *[decode_failed("d0", "p0")] * 2, decode_failed("d0", "p1"))
    assert court.held == {"d0": "inference"}
    assert "d0" not in {one.iid for one in probes(court(*goes)) if one.kind is ProbeKind.INFERENCE}
    assert court.held["d0"] == "inference"


def test_nothing_is_taken_back_twice() -> None:
    court = Court()
    court(decode_failed("d0", "p0", b"poison"), *unreachable("p0"))
    court(decode_failed("d0", "p1", b"one"), decode_failed("d0", "p1", b"two"))
    court(decode_failed("d1", "p1", b"poison"))
    assert court.streaks["d0"] == {"inference_status": 2}, "a conviction, then a suspected request"
    court = Court()
    court(*[decode_failed("d0", "p0")] * 2, decode_failed("d1", "p0"))
    assert (court.held, court.streaks) == ({"p0": "inference"}, {})
    court(decode_failed("d0", "p1"), decode_failed("d0", "p1"), InferenceProbed("p0", BAD, consumer="d1"))
    assert court.streaks == {"d0": {"inference_status": 2}}, "a suspicion, then a conviction"


def test_what_was_never_charged_is_not_taken_back_for_a_suspected_request() -> None:
    court = Court()
    court(*unreachable("p0"), decode_failed("d0", "p0", b"poison"))
    court(decode_failed("d0", "p1", b"one"), decode_failed("d0", "p1", b"two"))
    court(decode_failed("d1", "p1", b"poison"))
    assert court.streaks["d0"] == {"inference_status": 2}


def test_its_failed_edges_no_longer_speak_against_a_consumer() -> None:
    court = Court()
    court(crossed("p2", "d1"), decode_failed("d0", "p1"), *unreachable("p1"))
    court(decode_failed("d0", "p0"), decode_failed("d0", "p0"), decode_failed("d1", "p0"))
    assert (court.held, court.streaks.get("d0")) == ({"p0": "inference"}, None)


def test_a_clean_decode_between_ends_a_row_and_leaves_nothing_to_take_back() -> None:
    court = Court()
    court(decode_failed("d0", "p0"), LegSucceeded("d0", Leg.DECODE, "p1"), decode_failed("d0", "p1"))
    court(*unreachable("p0"))
    assert court.streaks["d0"] == {"inference_status": 1}


# --- probes whose partner went out meanwhile ---


def test_a_probe_across_a_producer_that_is_ejected_meanwhile_tells_nothing_and_is_made_without_it() -> None:
    court = Court()
    court.judgement.standings.able = {Leg.PREFILL: frozenset({"p0"}), Leg.DECODE: frozenset({"d0", "d1"})}
    court(*[lost("d0", "p0")] * 3, *unreachable("p0"))
    effects = court(InferenceProbed("d0", BAD, "p0", "silent", number=1))
    assert (court.held, court.out, court.avoided) == ({"d0": "inference"}, ("p0",), {})
    assert probes(effects) == [ProbeWanted(ProbeKind.INFERENCE, "d0")]
    court(InferenceProbed("d0", GOOD, number=2))
    assert court.held == {}


def test_nor_is_it_one_of_two_that_convict_a_consumer() -> None:
    court = Court()
    court(crossed("p1", "d0"), *[lost("d0", "p0")] * 3, InferenceProbed("d0", BAD, "p0", "silent"))
    assert court.avoided == {"p0": {"d0"}}
    court(*unreachable("p0"), crossed("p2", "d1"))
    effects = court(InferenceProbed("d0", BAD, "p1", "silent"))
    assert (court.out, court.held["d0"]) == (("p0",), "inference")
    (asked,) = probes(effects)
    assert (asked.kind, asked.iid, asked.producer in ("p0", "p1", "")) == (ProbeKind.INFERENCE, "d0", False)


def test_a_producer_is_not_judged_by_a_consumer_that_is_ejected_meanwhile() -> None:
    court = Court()
    court(lost("d0", "p0"), lost("d0", "p0"), lost("d1", "p0"))
    assert court.judgement.standings.checks.consumer("p0") == "d0"
    court(*unreachable("d0"))
    effects = court(InferenceProbed("p0", BAD, "", "silent", consumer="d0", number=1))
    assert (court.held, court.out) == ({"p0": "inference"}, ("d0",))
    assert [(one.iid, one.kind) for one in probes(effects)] == [("p0", ProbeKind.INFERENCE)]


@pytest.mark.parametrize("failure", [STREAM, STATUS])
def test_a_probe_that_told_nothing_with_an_engine_that_is_out_is_made_again_at_once(
    failure: FailureClass,
) -> None:
    """As one whose producer was dying: its own leg failed."""
    court = Court()
    court(*[decode_failed("d0", "p0", failure=failure)] * 2, decode_failed("d0", "p1", failure=failure))
    court(*unreachable("p0"))
    effects = court(InferenceProbed("d0", ProbeOutcome.INCONCLUSIVE, "p0", "p0: connect: refused", number=1))
    (asked,) = probes(effects)
    assert (asked.kind, asked.iid, asked.producer) == (ProbeKind.INFERENCE, "d0", "p1")
    assert court(InferenceProbed("d0", ProbeOutcome.INCONCLUSIVE, "p1", "our pool", number=2)) == []


def test_so_is_that_of_a_suspect_producer() -> None:
    court = Court()
    court(lost("d0", "p0"), lost("d0", "p0"), lost("d1", "p0"))
    court(*unreachable("d0"))
    told = InferenceProbed("p0", ProbeOutcome.INCONCLUSIVE, "", "d0: connect: refused", consumer="d0")
    assert [(one.iid, one.kind) for one in probes(court(told))] == [("p0", ProbeKind.INFERENCE)]


def test_without_anything_owed_it_is_not_made_at_all() -> None:
    court = Court()
    court(*unreachable("p0"))
    assert court(InferenceProbed("d0", ProbeOutcome.INCONCLUSIVE, "p0", "p0: connect: refused")) == []
