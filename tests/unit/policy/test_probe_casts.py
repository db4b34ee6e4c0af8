"""Whose KV a probe pulls, and what a busy answer to it tells: nothing, of nobody."""

from __future__ import annotations

import pytest

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, InferenceProbed, LegFailed, LegSucceeded, ProbeOutcome
from tests.unit.policy.test_blame import BAD, GOOD, NOW, STREAM, Court, decode_failed, probes

OVERLOAD = FailureClass.OVERLOAD


def lost(iid: str, peer: str = "", way: str = "first_token") -> LegFailed:
    return LegFailed(iid, Leg.DECODE, STREAM, f"stream:{way}", "silent", peer=peer)


def busy(iid: str, peer: str = "", status: int = 429) -> LegFailed:
    return LegFailed(iid, Leg.DECODE, OVERLOAD, f"overload:{status}", "busy", peer=peer, retry_after_s=4.0)


# --- a busy answer ---


@pytest.mark.parametrize("status", [408, 429])
@pytest.mark.parametrize("peer", ["", "p0"])
def test_a_probe_that_is_told_later_decides_nothing_and_is_made_again(status: int, peer: str) -> None:
    court = Court()
    court(*[lost("d0", peer)] * 3)
    assert court(InferenceProbed("d0", BAD, peer, f"status {status}", status)) == []
    assert (court.held, court.avoided, court.out) == ({"d0": "inference"}, {}, ())
    court.now += 10
    assert probes(list(court.judgement.standings.tick(court.now))) == [
        ProbeWanted(ProbeKind.INFERENCE, "d0", peer)
    ]
    court(InferenceProbed("d0", GOOD, peer))
    assert (court.held, court.avoided, court.out) == ({}, {}, ())


@pytest.mark.parametrize("status", [408, 429])
def test_nor_does_it_tell_of_a_producer_that_is_probed(status: int) -> None:
    court = Court()
    court(lost("d0", "p0"), lost("d0", "p0"), lost("d1", "p0"))
    assert court(InferenceProbed("p0", BAD, "", "busy", status, consumer="d1")) == []
    assert (court.held, court.avoided, court.out) == ({"p0": "inference"}, {}, ())


def test_an_engine_that_says_nothing_but_429_is_held_and_judged_itself_and_no_edge_of_it() -> None:
    court = Court()
    asked = []
    for number in range(7):
        court.now = NOW + 6.2 * number
        asked += probes(court(busy("d0", ("p0", "p1")[number % 2])))
    assert (court.held, court.avoided) == ({"d0": "inference"}, {})
    assert [one for one in asked if one.kind is ProbeKind.INFERENCE] == [
        ProbeWanted(ProbeKind.INFERENCE, "d0")
    ]
    court(InferenceProbed("d0", BAD, "p0", "status 429", 429))
    assert (court.out, court.avoided) == (("d0",), {})


@pytest.mark.parametrize("statuses", [(429,), (408,), (429, 408), (408, 429)])
def test_probes_across_edges_that_are_told_later_for_30_s_are_the_engines_matter_too(
    statuses: tuple[int, ...],
) -> None:
    court = Court()
    court(*[lost("d0", "p0")] * 3)
    for turn in range(3):
        court.now = NOW + 10 * turn
        status = statuses[turn % len(statuses)]
        court(InferenceProbed("d0", BAD, "p0", f"status {status}", status))
    assert (court.held, court.out, court.avoided) == ({"d0": "inference"}, (), {})
    court.now = NOW + 30
    court(InferenceProbed("d0", BAD, "p0", "status 408", 408))
    assert (court.out, court.avoided) == (("d0",), {})


@pytest.mark.parametrize("status", [408, 429])
@pytest.mark.parametrize("peer", ["", "p0"])
def test_no_hold_outlives_probes_that_are_told_nothing_but_later(status: int, peer: str) -> None:
    """With the engine's own probes alone, as they are asked."""
    court = Court()
    court(*[lost("d0", peer)] * 3)
    while not court.out:
        court.now += 1
        assert court.now <= NOW + 60, "it is held for ever"
        for one in probes(list(court.blame.tick(court.now))):
            court(InferenceProbed("d0", BAD, one.producer, "later", status, number=one.number))
    assert court.now > NOW + 30


def test_a_408_of_a_leg_among_them_begins_anew() -> None:
    court = Court()
    court(*[lost("d0", "p0")] * 3)
    for after_s in (0, 10, 20, 30, 40):
        court.now = NOW + after_s
        court(InferenceProbed("d0", BAD, "p0", "status 429", 429))
        if after_s == 20:
            court(busy("d0", status=408))
    assert (court.held, court.out, court.avoided) == ({"d0": "inference"}, (), {})


# --- who pulls ---


def accused(court: Court) -> list[ProbeWanted]:
    """The KV of p1 fails on d0, which does well with p0's; what is asked then."""
    able = {Leg.PREFILL: frozenset({"p0", "p1"}), Leg.DECODE: frozenset({"d0", "d1"})}
    court.judgement.standings.able = able
    court(lost("d0", "p1"), lost("d0", "p1"), LegSucceeded("d0", Leg.DECODE, "p0"))
    return probes(court(lost("d0", "p1")))


def asked_next(court: Court) -> ProbeWanted:
    """At the pace of probes."""
    for _ in range(10):
        court.now += 1
        for one in probes(list(court.blame.tick(court.now))):
            if one.kind is ProbeKind.INFERENCE:
                return one
    raise AssertionError("nobody looks again")


@pytest.mark.parametrize("told", ["before", "after"])
def test_a_producer_is_not_convicted_by_the_only_consumer_that_is_not_busy(told: str) -> None:
    """Its other edge may be well, which nobody knows before the busy one answers."""
    court = Court()
    court(*[busy("d1")] * (told == "before"))
    assert accused(court) == [ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d1")]
    assert court.held == ({"p1": "inference"} if told == "before" else {}), "it is of no use to anybody"
    court(InferenceProbed("p1", ProbeOutcome.INCONCLUSIVE, detail="status 429", consumer="d1"))
    assert asked_next(court).consumer == "d0"
    assert probes(court(InferenceProbed("p1", BAD, consumer="d0"))) == [
        ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d1")
    ]
    assert (court.out, court.avoided) == ((), {"p1": {"d0"}})
    court(InferenceProbed("p1", GOOD, consumer="d1"))
    assert (court.out, court.held, court.avoided) == ((), {}, {"p1": {"d0"}})


def test_it_is_when_the_busy_one_answers_that_it_fails_too() -> None:
    court = Court()
    court(busy("d1"))
    accused(court)
    court(InferenceProbed("p1", BAD, consumer="d0"), InferenceProbed("p1", BAD, consumer="d1"))
    assert (court.out, court.avoided) == (("p1",), {"p1": {"d0"}})


def test_and_when_the_busy_one_is_out_for_saying_nothing_else() -> None:
    court = Court()
    accused(court)
    court(InferenceProbed("p1", ProbeOutcome.INCONCLUSIVE, detail="status 429", consumer="d1"))
    for _ in range(4):
        court(busy("d1"))
        court.now += 10
    court(
        InferenceProbed("p1", BAD, consumer="d0"), InferenceProbed("d1", BAD, detail="status 429", status=429)
    )
    assert court.out == ("d1",)
    court(InferenceProbed("p1", BAD, consumer="d0"))
    assert court.out == ("d1", "p1"), "nobody else is left to ask"


@pytest.mark.parametrize(("status", "own_leg"), [(500, False), (0, True)])
def test_its_own_leg_convicts_it_whoever_was_to_pull(status: int, own_leg: bool) -> None:
    court = Court()
    court(busy("d1"))
    accused(court)
    court(InferenceProbed("p1", BAD, "", "no handoff", status, "d1", own_leg=own_leg))
    assert (court.out, court.avoided) == (("p1",), {})


def test_legs_that_failed_on_another_consumer_count_unless_it_fails_with_anybody() -> None:
    for fails_anyway in (False, True):
        court = Court()
        able = {Leg.PREFILL: frozenset({"p0", "p1"}), Leg.DECODE: frozenset({"d0", "d1", "d2"})}
        court.judgement.standings.able = able
        court(*[lost("d1", "p0")] * fails_anyway, lost("d0", "p1"), lost("d1", "p1"), lost("d0", "p1"))
        court(InferenceProbed("p1", BAD, consumer="d0"))
        assert court.out == (() if fails_anyway else ("p1",))


def test_partners_that_are_not_busy_are_asked_first() -> None:
    court = Court()
    court(busy("d1"))
    able = {Leg.PREFILL: frozenset({"p0", "p1", "p2"}), Leg.DECODE: frozenset({"d0", "d1", "d2"})}
    court.judgement.standings.able = able
    court(lost("d0", "p1"), lost("d0", "p1"), LegSucceeded("d0", Leg.DECODE, "p0"))
    assert probes(court(lost("d0", "p1"))) == [ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d2")]
    assert court.held == {}
    court(busy("p1"), *[lost("d1", "p0")] * 3)
    assert probes(court(InferenceProbed("d1", BAD, "p0", "silent"))) == [
        ProbeWanted(ProbeKind.INFERENCE, "d1", "p2")
    ]


@pytest.mark.parametrize("ago_s", [1.0, 3600.0])
def test_a_consumer_is_not_convicted_while_the_other_producer_is_busy(ago_s: float) -> None:
    court = Court()
    court.judgement.standings.able = {
        Leg.PREFILL: frozenset({"p0", "p1"}),
        Leg.DECODE: frozenset({"d0", "d1"}),
    }
    court(busy("p1"))
    court.now += ago_s
    court(*[lost("d0", "p0")] * 3)
    asked = probes(court(InferenceProbed("d0", BAD, "p0", "silent")))
    assert asked == [ProbeWanted(ProbeKind.INFERENCE, "d0", "p1")]
    for _ in range(3):
        court(InferenceProbed("d0", ProbeOutcome.INCONCLUSIVE, "p1", "p1: status 429"))
        assert asked_next(court).producer == "p0"
        assert probes(court(InferenceProbed("d0", BAD, "p0", "silent"))) == asked
        assert (court.out, court.held) == ((), {"d0": "inference"})
    court(InferenceProbed("d0", GOOD, "p1"))
    assert (court.out, court.held, court.avoided) == ((), {}, {"p0": {"d0"}})


@pytest.mark.parametrize("gone", ["ejected", "drained"])
@pytest.mark.parametrize("answer", [BAD, ProbeOutcome.INCONCLUSIVE, None])
def test_another_consumer_stands_in_for_one_that_is_out(gone: str, answer: ProbeOutcome | None) -> None:
    """A local probe, which the producer passes, would free it."""
    court = Court()
    court(busy("d1"))
    accused(court)
    court(InferenceProbed("p1", BAD, consumer="d0"))
    if gone == "drained":
        court.judgement.standings.set_drained(frozenset({"d1"}))
    else:
        court.judgement.standings.eject("d1", "it is dead", now=court.now)
    if answer is not None:
        (asked,) = probes(court(InferenceProbed("p1", answer, consumer="d1")))
    else:
        asked = asked_next(court)
    assert (asked.iid, asked.consumer) == ("p1", "d0")
    court(InferenceProbed("p1", BAD, consumer="d0"))
    assert "p1" in court.out


def test_a_429_that_is_long_over_makes_nobody_the_last_choice() -> None:
    court = Court()
    court(busy("d1"))
    court.now += 3600
    assert accused(court) == [ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d1")]
    assert court.held == {}


def test_one_with_whom_the_probe_told_nothing_makes_way_for_the_next() -> None:
    court = Court()
    assert accused(court) == [ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d1")]
    court(InferenceProbed("p1", ProbeOutcome.INCONCLUSIVE, detail="status 429", consumer="d1"))
    asked = []
    for _ in range(2):
        court.now += 10
        asked += probes(list(court.judgement.standings.tick(court.now)))
        court(InferenceProbed("p1", ProbeOutcome.INCONCLUSIVE, consumer=asked[-1].consumer))
    assert [one.consumer for one in asked] == ["d0", "d1"]


def test_without_any_other_it_is_asked_again() -> None:
    court = Court()
    accused(court)
    court.judgement.standings.able = {Leg.PREFILL: frozenset({"p0", "p1"}), Leg.DECODE: frozenset({"d1"})}
    court(InferenceProbed("p1", ProbeOutcome.INCONCLUSIVE, consumer="d1"))
    court.now += 10
    assert [one.consumer for one in probes(list(court.judgement.standings.tick(court.now)))] == ["d1"]


# --- whose KV ---


def test_a_suspect_that_takes_no_connection_fails_by_itself() -> None:
    court = Court()
    court(*[lost("d0", "p0")] * 3)
    court(InferenceProbed("d0", BAD, "p0", "cannot connect: refused", reached=False))
    assert (court.out, court.avoided) == (("d0",), {})


def test_one_that_took_it_may_have_failed_for_the_transfer() -> None:
    court = Court()
    court(*[lost("d0", "p0")] * 3)
    court(InferenceProbed("d0", BAD, "p0", "no whole answer in 5.0 s"))
    assert (court.out, court.avoided) == ((), {"p0": {"d0"}})


@pytest.mark.parametrize(
    "other",
    [
        busy("d0", "p1"),
        busy("d0", "p1", 408),
        LegFailed("d0", Leg.DECODE, FailureClass.CONNECTION, "connection:connect", "refused", peer="p1"),
        LegFailed("d0", Leg.DECODE, FailureClass.TIMEOUT, "timeout:connect", "silent", peer="p1"),
        lost("d0", "p1", "silence"),
    ],
)
def test_a_probe_crosses_only_producers_whose_transfers_failed(other: LegFailed) -> None:
    court = Court()
    court(other)
    asked = [one for _ in range(3) for one in probes(court(lost("d0", "p0")))]
    assert [(one.kind, one.producer) for one in asked] == [(ProbeKind.INFERENCE, "p0")]
    assert court.judgement.standings.checks.producers("d0") == ("p0",)


def test_where_none_failed_it_is_a_local_one() -> None:
    court = Court()
    asked = probes(court(busy("d0", "p0"), *[lost("d0", "p1", "silence")] * 3))
    assert asked == [ProbeWanted(ProbeKind.INFERENCE, "d0")]
    assert court.judgement.standings.checks.producers("d0") == ("",)
    court(InferenceProbed("d0", GOOD))
    assert court.held == {}


def test_local_decodes_that_failed_have_their_turn() -> None:
    court = Court()
    court(decode_failed("d0"), decode_failed("d0", "p0"), decode_failed("d0"))
    assert court.judgement.standings.checks.producers("d0") == ("", "p0")
    court(InferenceProbed("d0", GOOD, "p0"), LegSucceeded("d0", Leg.DECODE))
    assert court.held == {}
