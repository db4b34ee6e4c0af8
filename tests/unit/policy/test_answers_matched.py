"""Answers of probes against what is owed: an older or another one settles nothing (failures.md section 3)."""

from __future__ import annotations

import pytest

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    FailureClass,
    HealthProbed,
    InferenceProbed,
    LegFailed,
    ProbeOutcome,
    Validated,
)
from narwhal.policy.fleet import Fleet
from tests.unit.policy.test_judgement import failed, fleet_of, told, wanted

NOW = 100.0
GOOD, BAD, NEITHER = ProbeOutcome.GOOD, ProbeOutcome.BAD, ProbeOutcome.INCONCLUSIVE
C = FailureClass


def probe_of(effects: tuple[Effect, ...]) -> ProbeWanted:
    (probe,) = wanted(effects)
    return probe


def answer(fleet: Fleet, probe: ProbeWanted, outcome: ProbeOutcome) -> tuple[Effect, ...]:
    consumer, number = probe.consumer, probe.number
    peer = "" if consumer else probe.producer
    return fleet.step(
        InferenceProbed(probe.iid, outcome, peer, "seen", consumer=consumer, number=number), NOW
    )


def poisoned(fleet: Fleet) -> ProbeWanted:
    """The probe without a hold that p0 owes for a request that failed on it and on p1."""
    effects: tuple[Effect, ...] = ()
    for iid in ("p0", "p1"):
        way = "inference_status:500"
        effects = fleet.step(
            LegFailed(iid, Leg.PREFILL, C.INFERENCE_STATUS, way, "it broke", request=b"a"), NOW
        )
    return next(probe for probe in wanted(effects) if probe.iid == "p0")


def a_suspect_producer(fleet: Fleet) -> tuple[Effect, ...]:
    """p0's KV handoffs fail on both consumers."""
    effects: tuple[Effect, ...] = ()
    for consumer in ("d0", "d1", "d0", "d1"):
        effects = failed(fleet, consumer, C.STREAM, peer="p0")
        if told(effects):
            return effects
    raise AssertionError("nobody is suspected")


def test_a_probe_from_before_a_hold_does_not_end_it_and_the_newer_one_is_asked_at_once() -> None:
    fleet = fleet_of()
    local = poisoned(fleet)
    assert told(a_suspect_producer(fleet)) == [("hold", "p0")]
    again = answer(fleet, local, GOOD)
    assert told(again) == []
    assert fleet.standing(NOW).holds["p0"].reason
    across = probe_of(again)
    assert (across.iid, across.consumer) == ("p0", "d0")
    assert told(answer(fleet, across, GOOD)) == [("hold_ended", "p0")]


def test_it_ends_it_for_good_if_it_was_bad_since_it_was_owed_all_the_time() -> None:
    fleet = fleet_of()
    local = poisoned(fleet)
    a_suspect_producer(fleet)
    assert ("ejection", "p0") in told(answer(fleet, local, BAD))


def test_a_probe_across_one_edge_says_nothing_of_a_producer_that_failed_since() -> None:
    fleet = fleet_of()
    first = probe_of(failed(fleet, "d0", C.STREAM, times=3, peer="p0"))
    failed(fleet, "d0", C.STREAM, peer="p1")
    second = probe_of(answer(fleet, first, GOOD))
    assert (first.producer, second.producer) == ("p0", "p1")
    assert not fleet.eligible("d0", NOW)
    assert told(answer(fleet, second, GOOD)) == [("hold_ended", "d0")]


def test_more_failures_of_the_same_kind_do_not_put_the_answer_off() -> None:
    fleet = fleet_of()
    probe = probe_of(failed(fleet, "d0", C.STREAM, times=3, peer="p0"))
    failed(fleet, "d0", C.STREAM, times=5, peer="p0")
    assert told(answer(fleet, probe, GOOD)) == [("hold_ended", "d0")]


@pytest.mark.parametrize("outcome", [GOOD, BAD])
def test_a_probe_from_before_an_ejection_and_a_readmission_is_over(outcome: ProbeOutcome) -> None:
    fleet = fleet_of()
    old = probe_of(failed(fleet, "d0", C.INFERENCE_STATUS, times=3))
    failed(fleet, "d0", C.CONNECTION, times=3)
    assert fleet.standings.ejected() == ("d0",)
    fleet.step(Validated("d0", (Check("health", "passed"),)), NOW)
    assert answer(fleet, old, outcome) == ()
    assert fleet.eligible("d0", NOW)
    new = probe_of(failed(fleet, "d0", C.INFERENCE_STATUS, times=3))
    again = answer(fleet, old, outcome)
    assert told(again) == [] and probe_of(again).number > new.number
    assert fleet.standing(NOW).holds.keys() == {"d0"}


def test_a_bad_answer_across_an_edge_to_nothing_that_is_owed_asks_nothing_of_one_that_is_out() -> None:
    fleet = fleet_of()
    old = probe_of(failed(fleet, "d0", C.STREAM, times=3, peer="p0"))
    failed(fleet, "d0", C.CONNECTION, times=3)
    assert answer(fleet, old, BAD) == ()
    assert fleet.standings.verifying() == ()


def test_a_health_check_from_before_a_readmission_ejects_nobody() -> None:
    fleet = fleet_of()
    old = probe_of(failed(fleet, "d0", C.TIMEOUT, times=3))
    failed(fleet, "d0", C.CONNECTION, times=3)
    fleet.step(Validated("d0", (Check("health", "passed"),)), NOW)
    failed(fleet, "d0", C.TIMEOUT, times=3)
    effects = fleet.step(HealthProbed("d0", BAD, "seen", number=old.number), NOW)
    assert told(effects) == []
    new = probe_of(effects)
    assert new.kind is ProbeKind.HEALTH
    assert told(fleet.step(HealthProbed("d0", BAD, "seen", number=new.number), NOW)) == [("ejection", "d0")]
