"""What of holds, streaks and ejections travels to the next owner (failures.md section 11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import HealthProbed, InferenceProbed
from narwhal.model.standing import HoldView
from narwhal.policy.fleet import Fleet
from narwhal.policy.travel import Opening
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import (
    BAD,
    GOOD,
    HEALTH,
    INFERENCE,
    NOW,
    READMISSION,
    C,
    ejected,
    failed,
    fleet_of,
    held,
    told,
    wanted,
)


def handed_over(fleet: Fleet, *, cautious: bool = False) -> Fleet:
    """A successor on another clock, 4,000 s ahead, with what `fleet` told at NOW."""
    state = fleet.export(NOW)
    document = replace(
        handoff_document(**{iid: role.value for iid, role in state.roles.items()}),
        ejected=state.ejected,
        ejections=state.ejections,
        inference_sources=state.inference_sources,
        inference_holds=state.inference_holds,
        holds=state.holds,
        streaks=state.streaks,
    )
    successor = fleet_of(readmit_every=10)
    failed(successor, "p1", C.CONNECTION, times=3)  # what it knew itself is replaced
    assert successor.restore(document, LATER, opening=Opening(cautious=cautious)) == ()
    return successor


LATER = NOW + 4000.0


def test_ejections_travel_and_are_looked_at_at_once() -> None:
    before = ejected()
    successor = handed_over(before)
    assert successor.standings.ejected() == ("d0",)
    reasons = [fleet.standings.ejections.view()["d0"].reason for fleet in (before, successor)]
    assert reasons == ["3 connection failures in a row, last: it broke"] * 2
    assert ProbeWanted(READMISSION, "d0") in wanted(successor.tick(LATER))
    assert successor.available(LATER) == ("d1", "p0", "p1")


def test_an_inference_hold_travels_with_its_producers_and_is_probed_at_once() -> None:
    fleet = fleet_of()
    held(fleet, "d0", peer="p1")
    held(fleet, "p0")
    assert fleet.export(NOW).inference_sources == {"d0": ("p1",), "p0": ("",)}
    successor = handed_over(fleet)
    assert successor.export(LATER).inference_sources == {"d0": ("p1",), "p0": ("",)}
    reasons = [{iid: hold.reason for iid, hold in one.items()} for one in holds_of(fleet, successor)]
    assert reasons == [dict.fromkeys(("d0", "p0"), "3 stream failures in a row, last: it broke")] * 2
    assert successor.available(LATER) == ("d1", "p1")
    asked = wanted(successor.tick(LATER))
    assert asked == [ProbeWanted(INFERENCE, "d0", "p1"), ProbeWanted(INFERENCE, "p0")]
    assert told(successor.step(InferenceProbed("d0", GOOD, "p1"), LATER)) == [("hold_ended", "d0")]


def holds_of(before: Fleet, after: Fleet) -> list[dict[str, HoldView]]:
    return [dict(before.standing(NOW).holds), dict(after.standing(LATER).holds)]


def test_a_suspect_producers_hold_travels_with_the_consumer_that_is_to_pull_from_it() -> None:
    fleet = fleet_of()
    for iid in ("d0", "d1", "d0"):
        failed(fleet, iid, C.STREAM, peer="p1")
    assert fleet.export(NOW).inference_holds["p1"]["consumer"] == "d0"
    successor = handed_over(fleet)
    assert ProbeWanted(INFERENCE, "p1", consumer="d0") in wanted(successor.tick(LATER))
    # The receiver's own next handoff has it too.
    assert successor.export(LATER).inference_holds == fleet.export(NOW).inference_holds


@pytest.mark.parametrize(
    "told", [{}, {"d0": "because"}, {"d0": {"reason": 3, "consumer": ["d1"]}}, {"d0": {"consumer": "gone"}}]
)
def test_a_hold_without_words_that_can_be_read_is_a_hold_all_the_same(told: Any) -> None:
    fleet = fleet_of()
    document = replace(handoff_document(d0="decode"), inference_sources={"d0": ("",)}, inference_holds=told)
    fleet.restore(document, NOW)
    assert fleet.standing(NOW).holds["d0"].reason
    assert wanted(fleet.tick(NOW)) == [ProbeWanted(INFERENCE, "d0", "")]


def test_a_quarantine_travels_with_its_remaining_seconds() -> None:
    fleet = fleet_of(failure_quarantine_s=5.0)
    failed(fleet, "d0", C.STREAM, now=NOW - 2)
    successor = handed_over(fleet)
    assert not successor.eligible("d0", LATER + 2.9)
    assert successor.eligible("d0", LATER + 3.0)


def test_streaks_travel_and_their_engines_are_probed_not_trusted() -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.STREAM, times=2)
    failed(fleet, "d1", C.TIMEOUT, times=2)
    failed(fleet, "p0", C.CONNECTION)
    successor = handed_over(fleet)
    streaks = {"d0": {"stream": 2}, "d1": {"timeout": 2}, "p0": {"connection": 1}}
    assert successor.standing(LATER).failures == successor.export(LATER).streaks == streaks
    assert successor.available(LATER) == ("d0", "d1", "p0", "p1")
    asked = wanted(successor.tick(LATER))
    assert asked == [ProbeWanted(HEALTH, "d1"), ProbeWanted(HEALTH, "p0"), ProbeWanted(INFERENCE, "d0")]
    assert told(failed(successor, "d0", C.STREAM, now=LATER)) == [("hold", "d0")]
    assert wanted(successor.step(HealthProbed("d1", GOOD), LATER)) == [ProbeWanted(INFERENCE, "d1", "")]
    # One failure is no verdict, so a bad check is no more than a missed sweep.
    assert successor.step(HealthProbed("p0", BAD, "refused"), LATER) == ()
    assert told(successor.step(HealthProbed("p0", BAD, "refused"), LATER + 1)) == [("ejection", "p0")]


def test_a_carried_verdict_is_confirmed_by_one_bad_health_check() -> None:
    fleet = fleet_of()
    failed(fleet, "p0", C.OVERLOAD, times=3)
    successor = handed_over(fleet)
    assert told(successor.step(HealthProbed("p0", BAD, "refused"), LATER)) == [("ejection", "p0")]


def test_an_engine_that_is_out_owes_no_check_but_those_of_its_readmission() -> None:
    fleet = ejected()
    failed(fleet, "d0", C.TIMEOUT, times=3)
    assert fleet.step(HealthProbed("d0", GOOD), NOW) == ()
    assert fleet.standings.verifying() == ()


def test_restored_holds_leave_the_last_engine_of_a_leg() -> None:
    fleet = fleet_of("p0 p1 d0 d1")
    held(fleet, "d0")
    held(fleet, "d1", peer="p0")
    held(fleet, "p0", peer="")
    sources = fleet.export(NOW).inference_sources
    successor = fleet_of("d0 d1")
    successor.restore(replace(handoff_document(d0="decode", d1="decode"), inference_sources=sources), LATER)
    assert successor.available(LATER) == ("d1",)
    assert wanted(successor.tick(LATER)) == [
        ProbeWanted(INFERENCE, "d0", ""),
        ProbeWanted(INFERENCE, "d1", ""),
    ]


def test_a_cautious_successor_holds_and_verifies() -> None:
    fleet = fleet_of()
    held(fleet, "d0", peer="p1")
    successor = handed_over(fleet, cautious=True)
    assert successor.available(LATER) == ()
    for iid in successor.engines:
        successor.step(HealthProbed(iid, GOOD), LATER)
    assert successor.available(LATER) == ("d1", "p0", "p1")


def test_carried_streaks_are_asked_about_at_once_and_then_each_at_the_pace_of_its_check() -> None:
    fleet = fleet_of(readmit_every=10)
    document = replace(
        handoff_document(p0="prefill", p1="prefill", d0="decode", d1="decode"),
        streaks={"d0": {"stream": 1}, "d1": {"overload": 1}},
    )
    fleet.restore(document, NOW)
    asked = {
        at: [(one.kind, one.iid) for one in fleet.tick(NOW + at) if isinstance(one, ProbeWanted)]
        for at in range(25)
    }
    assert [at for at, probes in asked.items() if (ProbeKind.HEALTH, "d1") in probes] == list(range(25))
    assert [at for at, probes in asked.items() if (ProbeKind.INFERENCE, "d0") in probes] == [0, 10, 20]
