"""Engines whose pulls of others' KV fail while all else goes well, and pairs that only look so."""

from __future__ import annotations

import pytest

from narwhal.model.effect import Effect
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, InferenceProbed, LegFailed, LegSucceeded
from tests.unit.policy.test_blame import BAD, GOOD, Court, crossed, decode_failed, probes


@pytest.mark.parametrize(
    "between", [[], [LegSucceeded("d0", Leg.DECODE)]], ids=["prefills", "own decodes too"]
)
@pytest.mark.parametrize("producers", [("p0",), ("p0", "p1")], ids=["one", "two"])
def test_an_engine_with_both_roles_that_fails_every_pull_is_found(
    producers: tuple[str, ...], between: list[LegSucceeded]
) -> None:
    court = Court()
    effects: list[Effect] = []
    for number in range(3):
        producer = producers[number % len(producers)]
        assert (court.held, court.out) == ({}, ())
        court(
            LegSucceeded("d0", Leg.PREFILL),
            crossed("d0", "d1"),
            *between,
            LegSucceeded(producer, Leg.PREFILL),
        )
        effects = court(decode_failed("d0", producer, b"%d" % number))
    assert (court.held, court.out) == ({"d0": "inference"}, ())
    (asked,) = probes(effects)
    assert (asked.iid, asked.producer in producers) == ("d0", True)
    (asked,) = probes(court(InferenceProbed("d0", BAD, asked.producer)))
    court(InferenceProbed("d0", BAD, asked.producer))
    assert court.out == ("d0",)


def test_a_pair_whose_consumer_prefills_well_is_avoided_and_nobody_is_out() -> None:
    court = Court()
    for number in range(3):
        effects = court(LegSucceeded("d0", Leg.PREFILL), decode_failed("d0", "p0", b"%d" % number))
    assert [(one.iid, one.producer) for one in probes(effects)] == [("d0", "p0")]
    (asked,) = probes(court(InferenceProbed("d0", BAD, "p0")))
    assert (asked.iid, asked.producer in ("p0", "")) == ("d0", False)
    court(InferenceProbed("d0", GOOD, asked.producer))
    assert (court.held, court.out, court.avoided) == ({}, (), {"p0": {"d0"}})


def test_pulls_of_a_producer_that_fails_with_others_too_are_its_own_fault() -> None:
    court = Court()
    well = LegSucceeded("d0", Leg.PREFILL)
    court(crossed("p1", "d0"), crossed("p1", "d1"), decode_failed("d0", "p0", b"1"), well)
    court(decode_failed("d0", "p0", b"2"), well, decode_failed("d1", "p0", b"3"))
    assert court.held == {"p0": "inference"}
    court(well, decode_failed("d0", "p1", b"4"))
    assert court.held == {"p0": "inference"}, "what p0 brought it is taken back"


def test_what_an_ejected_producer_brought_is_no_row_of_its_consumers() -> None:
    court = Court()
    well = LegSucceeded("d0", Leg.PREFILL)
    court(decode_failed("d0", "p0", b"1"), well, decode_failed("d0", "p0", b"2"), well)
    court(*[LegFailed("p0", Leg.PREFILL, FailureClass.CONNECTION, "connection:connect", "gone")] * 3)
    assert court.out == ("p0",)
    court(decode_failed("d0", "p1", b"3"))
    assert court.held == {}


def test_a_row_that_ends_in_a_lost_connection_is_probed_across_all_the_same() -> None:
    court = Court()
    court(decode_failed("d0", "p0", b"1"), LegSucceeded("d0", Leg.PREFILL))
    court(decode_failed("d0", "p0", b"2"), LegSucceeded("d0", Leg.PREFILL))
    gone = LegFailed(
        "d0", Leg.DECODE, FailureClass.CONNECTION, "connection:lost", "gone", peer="p0", request=b"3"
    )
    assert [(one.iid, one.producer) for one in probes(court(gone))] == [("d0", "p0")]
