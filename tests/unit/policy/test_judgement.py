"""Evidence through the fleet: verdicts, holds, probes, ejections, readmission, the guard. Plain numbers."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted, Told
from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.model.evidence import (
    Check,
    CountFailed,
    FailureClass,
    HealthProbed,
    InferenceProbed,
    LegAnswered,
    LegFailed,
    LegSucceeded,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.placement import Demand
from narwhal.policy.fleet import Fleet
from tests.support.settings import (
    controller_settings,
    fleet_config,
    recovery_settings,
)

NOW = 100.0
C = FailureClass
GOOD, BAD, NEITHER = ProbeOutcome.GOOD, ProbeOutcome.BAD, ProbeOutcome.INCONCLUSIVE
HEALTH, INFERENCE, READMISSION = ProbeKind.HEALTH, ProbeKind.INFERENCE, ProbeKind.READMISSION


def fleet_of(iids: str = "p0 p1 d0 d1", *, pinned: str = "", contract: Any = None, **recovery: Any) -> Fleet:
    """Engines p* prefill, d* decode; a pass every second, probes of one engine every 10 s."""
    specs = [
        EngineSpec(
            iid, f"http://{iid}", Role.PREFILL if iid[0] == "p" else Role.DECODE, pin=iid in pinned.split()
        )
        for iid in iids.split()
    ]
    return Fleet(
        fleet_config(
            *specs,
            contract=contract,
            recovery=recovery_settings(**recovery),
            controller=controller_settings(monitor_interval_s=1.0),
        ),
        {},
    )


def failed(
    fleet: Fleet,
    iid: str,
    failure: FailureClass,
    *,
    times: int = 1,
    peer: str = "",
    now: float = NOW,
) -> tuple[Effect, ...]:
    """The effects of the last one of `times` equal failures."""
    leg = Leg.DECODE if iid[0] == "d" else Leg.PREFILL
    effects: tuple[Effect, ...] = ()
    for _ in range(times):
        effects = fleet.step(LegFailed(iid, leg, failure, f"{failure}:x", "it broke", peer=peer), now)
    return effects


def told(effects: tuple[Effect, ...]) -> list[tuple[str, str]]:
    """Of engines; what is told of the whole fleet is others' matter."""
    shown = (one for one in effects if isinstance(one, Told) and one.enforced)
    return [(one.kind, one.fields["iid"]) for one in shown if "iid" in one.fields]


def wanted(effects: tuple[Effect, ...]) -> list[ProbeWanted]:
    return [one for one in effects if isinstance(one, ProbeWanted)]


# --- failures.md section 2: what a streak at its threshold does ---------------------------------------


def test_connection_failures_eject() -> None:
    fleet = fleet_of()
    assert failed(fleet, "d0", C.CONNECTION, times=2) == ()
    effects = failed(fleet, "d0", C.CONNECTION)
    assert told(effects) == [("ejection", "d0")]
    assert wanted(effects) == []
    assert fleet.standings.ejected() == ("d0",)
    assert fleet.available(NOW) == ("d1", "p0", "p1")
    (ejection,) = effects
    assert isinstance(ejection, Told)
    assert ejection.fields["reason"] == "3 connection failures in a row, last: it broke"
    assert failed(fleet, "d0", C.CONNECTION) == ()


@pytest.mark.parametrize("failure", [C.STREAM, C.INFERENCE_STATUS, C.KV_HANDOFF])
def test_stream_status_and_handoff_failures_hold_and_ask_for_a_probe(
    failure: FailureClass,
) -> None:
    fleet = fleet_of()
    failed(fleet, "p0", failure, times=2)
    effects = failed(fleet, "p0", failure)
    assert told(effects) == [("hold", "p0")]
    assert wanted(effects) == [ProbeWanted(INFERENCE, "p0")]
    assert fleet.available(NOW) == ("d0", "d1", "p1")
    assert failed(fleet, "p0", failure) == ()


@pytest.mark.parametrize("failure", [C.TIMEOUT, C.OVERLOAD])
def test_timeouts_and_overload_ask_for_a_health_check_and_hold_nobody(failure: FailureClass) -> None:
    fleet = fleet_of()
    failed(fleet, "d0", failure, times=2)
    effects = failed(fleet, "d0", failure)
    assert (told(effects), wanted(effects)) == ([], [ProbeWanted(HEALTH, "d0")])
    assert fleet.available(NOW) == ("d0", "d1", "p0", "p1")
    assert failed(fleet, "d0", failure) == ()


def test_after_timeouts_a_good_health_check_is_followed_by_an_inference_probe_without_a_hold() -> None:
    fleet = fleet_of()
    for _ in range(3):
        fleet.step(CountFailed("d0", C.TIMEOUT, "no answer"), NOW)
    failed(fleet, "d0", C.STREAM, peer="p1")
    fleet.step(LegSucceeded("d0", Leg.DECODE, "p0"), NOW)
    effects = fleet.step(HealthProbed("d0", GOOD), NOW)
    assert effects == (ProbeWanted(INFERENCE, "d0", "p1"),)
    assert fleet.eligible("d0", NOW)
    assert fleet.standing(NOW).failures == {}


def test_after_overload_a_good_health_check_is_the_end_of_it() -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.OVERLOAD, times=3)
    assert fleet.step(HealthProbed("d0", GOOD), NOW) == ()
    assert fleet.standings.verifying() == ()


@pytest.mark.parametrize("good", [HealthProbed("d0", GOOD), LivenessSwept("d0", GOOD)])
def test_a_stopped_core_that_answers_health_is_probed_after_its_first_timeout(good: Any) -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.TIMEOUT)
    assert fleet.step(good, NOW) == (ProbeWanted(INFERENCE, "d0", ""),)


def test_a_timeout_among_successes_is_forgotten_at_the_next_good_health_check() -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.TIMEOUT)
    fleet.step(LegSucceeded("d0", Leg.DECODE), NOW)
    assert fleet.standing(NOW).failures == {"d0": {"timeout": 1}}
    assert fleet.step(LivenessSwept("d0", GOOD), NOW) == ()
    assert fleet.standing(NOW).failures == {}


def test_missed_sweeps_eject() -> None:
    fleet = fleet_of(liveness_misses=2)
    assert fleet.step(LivenessSwept("p0", BAD, "HTTP 500"), NOW) == ()
    assert fleet.step(LivenessSwept("p0", NEITHER), NOW) == ()
    assert told(fleet.step(LivenessSwept("p0", BAD, "HTTP 500"), NOW)) == [("ejection", "p0")]


def test_a_missed_sweep_while_streams_bring_bytes_is_overload() -> None:
    fleet = fleet_of(liveness_misses=1)
    assert fleet.step(LivenessSwept("p0", BAD, streaming=True), NOW) == ()
    assert fleet.standing(NOW).failures == {"p0": {"overload": 1}}
    assert fleet.eligible("p0", NOW)


def test_sweeps_that_an_engine_misses_for_its_streams_lead_to_a_health_check() -> None:
    fleet = fleet_of()
    fleet.step(LivenessSwept("p0", BAD, "no answer", streaming=True), NOW)
    fleet.step(LivenessSwept("p0", BAD, "no answer", streaming=True), NOW)
    effects = fleet.step(LivenessSwept("p0", BAD, "no answer", streaming=True), NOW)
    assert effects == (ProbeWanted(HEALTH, "p0"),)
    assert told(fleet.step(HealthProbed("p0", BAD, "no answer"), NOW)) == [("ejection", "p0")]


def test_evidence_of_an_unknown_engine_is_nothing() -> None:
    fleet = fleet_of(liveness_misses=1)
    for evidence in (
        LegFailed("x", Leg.DECODE, C.CONNECTION, "w", "d"),
        LivenessSwept("x", BAD),
        InferenceProbed("x", BAD),
        HealthProbed("x", BAD),
        LegAnswered("x", Leg.DECODE, 400),
        Validated("x", ()),
    ):
        for _ in range(4):
            assert fleet.step(evidence, NOW) == ()
    assert (fleet.standing(NOW).failures, fleet.standings.ejected()) == ({}, ())


# --- section 3: holds and their probes -----------------------------------------------------------------


def held(fleet: Fleet, iid: str = "d0", peer: str = "p1") -> None:
    failed(fleet, iid, C.STREAM, times=3, peer=peer)
    assert fleet.standings.holds(NOW)[iid].kind == "inference"


def test_both_legs_good_ends_the_hold_and_clears_its_streaks() -> None:
    fleet = fleet_of()
    held(fleet)
    for failure in (C.CONNECTION, C.INFERENCE_STATUS, C.KV_HANDOFF, C.TIMEOUT):
        failed(fleet, "d0", failure)
    effects = fleet.step(InferenceProbed("d0", GOOD, "p1"), NOW)
    assert told(effects) == [("hold_ended", "d0")]
    assert fleet.eligible("d0", NOW)
    assert fleet.standing(NOW).failures == {"d0": {"timeout": 1}}
    assert fleet.standings.verifying() == ()


def test_a_failed_leg_of_a_probe_ejects() -> None:
    fleet = fleet_of()
    held(fleet)
    effects = fleet.step(InferenceProbed("d0", BAD, "", "HTTP 500", 500), NOW)
    assert told(effects) == [("hold_ended", "d0"), ("ejection", "d0")]
    assert fleet.standings.holds(NOW) == {}
    assert fleet.standings.verifying() == ()


def test_an_inconclusive_probe_keeps_the_hold_and_is_repeated_at_the_cadence() -> None:
    fleet = fleet_of(readmit_every=10)
    held(fleet)
    assert fleet.step(InferenceProbed("d0", NEITHER), NOW + 2) == ()
    assert not fleet.eligible("d0", NOW + 2)
    assert wanted(fleet.tick(NOW + 11)) == []
    assert wanted(fleet.tick(NOW + 12)) == [ProbeWanted(INFERENCE, "d0", "p1")]
    assert wanted(fleet.tick(NOW + 13)) == []


def test_a_probe_whose_answer_never_comes_is_asked_again_at_the_cadence() -> None:
    fleet = fleet_of(readmit_every=10)
    held(fleet)
    assert wanted(fleet.tick(NOW + 9)) == []
    assert wanted(fleet.tick(NOW + 10)) == [ProbeWanted(INFERENCE, "d0", "p1")]


def test_a_probe_crosses_the_edges_that_failed_in_turn_and_no_producer_that_is_out() -> None:
    fleet = fleet_of("p0 p1 p2 d0 d1", readmit_every=10)
    for peer in ("p0", "p1", "p0"):
        effects = failed(fleet, "d0", C.STREAM, peer=peer)
    seen = [one.producer for one in wanted(effects)]
    seen += [one.producer for at in (10, 20, 30) for one in wanted(fleet.tick(NOW + at))]
    assert seen == ["p0", "p1", "p0", "p1"]
    failed(fleet, "p0", C.CONNECTION, times=3)
    assert [one.producer for one in wanted(fleet.tick(NOW + 40)) if one.kind is INFERENCE] == ["p1"]
    failed(fleet, "p1", C.CONNECTION, times=3)
    assert [one.producer for one in wanted(fleet.tick(NOW + 50)) if one.kind is INFERENCE] == [""]


def test_a_bad_health_check_ejects_whom_a_verdict_asked_about() -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.OVERLOAD, times=3)
    assert told(fleet.step(HealthProbed("d0", BAD, "HTTP 503"), NOW)) == [("ejection", "d0")]


def test_a_bad_health_check_that_nobody_asked_for_is_no_verdict() -> None:
    fleet = fleet_of()
    assert fleet.step(HealthProbed("d0", BAD, "HTTP 503"), NOW) == ()
    assert fleet.eligible("d0", NOW)


def test_a_bad_health_check_while_streams_bring_bytes_is_overload_and_is_repeated() -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.TIMEOUT, times=3)
    assert fleet.step(HealthProbed("d0", BAD, streaming=True), NOW) == ()
    assert fleet.standing(NOW).failures == {"d0": {"overload": 1, "timeout": 3}}
    assert wanted(fleet.tick(NOW + 1)) == [ProbeWanted(HEALTH, "d0")]


def test_an_inconclusive_health_check_is_repeated_in_the_next_pass() -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.OVERLOAD, times=3)
    assert fleet.step(HealthProbed("d0", NEITHER), NOW) == ()
    assert wanted(fleet.tick(NOW + 1)) == [ProbeWanted(HEALTH, "d0")]
    assert fleet.eligible("d0", NOW + 1)


def test_a_failed_leg_quarantines_for_its_time_and_selection_sees_the_end_by_itself() -> None:
    fleet = fleet_of(failure_quarantine_s=5.0)
    effects = failed(fleet, "d0", C.CONNECTION)
    assert told(effects) == [("hold", "d0")]
    assert fleet.available(NOW + 4.9) == ("d1", "p0", "p1")
    places = [fleet.reserve_decode(Demand(10), NOW + 4.9, producer="p0") for _ in range(3)]
    assert {place.iid for place in places if place} == {"d1"}
    place = fleet.reserve_decode(Demand(10), NOW + 5.0, producer="p0")
    assert place is not None and place.iid == "d0"
    assert told(fleet.tick(NOW + 6)) == [("hold_ended", "d0")]


@pytest.mark.parametrize(
    "good", [HealthProbed("d0", GOOD), LivenessSwept("d0", GOOD), InferenceProbed("d0", GOOD)]
)
def test_a_good_check_ends_a_quarantine_early(good: Any) -> None:
    fleet = fleet_of(failure_quarantine_s=5.0)
    failed(fleet, "d0", C.STREAM)
    assert told(fleet.step(good, NOW + 1)) == [("hold_ended", "d0")]
    assert fleet.eligible("d0", NOW + 1)


def test_back_pressure_quarantines_nobody_and_without_the_setting_nothing_does() -> None:
    fleet = fleet_of(failure_quarantine_s=5.0)
    assert failed(fleet, "d0", C.OVERLOAD) == ()
    assert failed(fleet_of(), "d0", C.STREAM) == ()


# --- section 3: the last engine of a role --------------------------------------------------------------


def test_a_hold_spares_the_last_engine_which_is_probed_all_the_same() -> None:
    fleet = fleet_of("p0 d0 d1", pinned="p0 d0 d1")
    held(fleet, "d0", peer="p0")
    effects = failed(fleet, "d1", C.STREAM, times=3)
    (spared, probe) = effects
    assert isinstance(spared, Told) and not spared.enforced and spared.kind == "hold"
    assert probe == ProbeWanted(INFERENCE, "d1")
    assert fleet.can_serve(Leg.DECODE, NOW)
    assert failed(fleet, "d1", C.STREAM) == ()
    fleet.step(InferenceProbed("d0", GOOD, peer="p0"), NOW)
    assert told(failed(fleet, "d1", C.STREAM)) == [("hold", "d1")]


def test_a_quarantine_that_the_guard_withholds_is_told_again_once_it_would_have_ended() -> None:
    fleet = fleet_of("p0 d0", pinned="p0 d0", failure_quarantine_s=5.0)
    told_at = []
    for at in (0.0, 1.0, 4.9, 5.0, 5.1, 10.0):
        effects = failed(fleet, "d0", C.TIMEOUT, now=NOW + at)
        told_at += [
            at for one in effects if isinstance(one, Told) and (one.kind, one.enforced) == ("hold", False)
        ]
    assert told_at == [0.0, 5.0, 10.0]


def test_thousands_of_failed_legs_of_one_engine_cost_little_each() -> None:
    """Counted in calls of the truth table, not timed."""
    fleet = fleet_of("p0 p1 d0 d1", failure_quarantine_s=5.0)
    judged: list[str] = []
    inner = fleet.standings.of

    def counted(iid: str, now: float) -> Any:
        judged.append(iid)
        return inner(iid, now)

    fleet.standings.of = counted  # type: ignore[method-assign]
    failed(fleet, "d0", C.STREAM, times=1000)
    assert len(judged) <= 10 * len(fleet.engines)


def test_a_hold_ends_when_the_last_other_engine_is_ejected_and_its_probe_is_still_owed() -> None:
    fleet = fleet_of(pinned="p0 p1 d0 d1")
    failed(fleet, "p0", C.KV_HANDOFF, times=3)
    assert not fleet.eligible("p0", NOW)
    effects = failed(fleet, "p1", C.CONNECTION, times=3)
    told = [(one.kind, one.fields["iid"]) for one in effects if isinstance(one, Told)]
    assert told == [("ejection", "p1"), ("hold_ended", "p0")]
    assert fleet.eligible("p0", NOW) and fleet.can_serve(Leg.PREFILL, NOW)
    assert ProbeWanted(INFERENCE, "p0") in fleet.tick(NOW + 10.0)


def test_a_hold_stays_where_another_engine_can_still_take_the_part() -> None:
    fleet = fleet_of("p0 p1 p2 d0", pinned="p0 p1 p2 d0")
    failed(fleet, "p0", C.KV_HANDOFF, times=3)
    failed(fleet, "p1", C.CONNECTION, times=3)
    assert not fleet.eligible("p0", NOW)


def test_a_quarantine_spares_the_last_engine() -> None:
    fleet = fleet_of("p0 p1", failure_quarantine_s=5.0)
    assert told(failed(fleet, "p0", C.TIMEOUT)) == [("hold", "p0")]
    assert told(failed(fleet, "p1", C.TIMEOUT)) == []
    assert fleet.available(NOW) == ("p1",)


@pytest.mark.parametrize(
    "evidence",
    [
        [LegFailed("p0", Leg.PREFILL, C.CONNECTION, "w", "refused")] * 3,
        [LivenessSwept("p0", BAD)] * 2,
        [InferenceProbed("p0", BAD)],
        [LegFailed("p0", Leg.PREFILL, C.OVERLOAD, "w", "HTTP 429")] * 3 + [HealthProbed("p0", BAD)],
    ],
)
def test_a_confirmed_failure_takes_the_last_engine_too(evidence: list[Any]) -> None:
    fleet = fleet_of("p0")
    for one in evidence:
        fleet.step(one, NOW)
    assert fleet.standings.ejected() == ("p0",)
    assert not fleet.can_serve(Leg.PREFILL, NOW)
    assert not fleet.can_serve(Leg.DECODE, NOW)
    assert wanted(fleet.tick(NOW + 10)) == [ProbeWanted(READMISSION, "p0")]


# --- section 4: what clears a streak -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("good", "left"),
    [
        (LegAnswered("d0", Leg.DECODE, 400), {"timeout", "stream", "overload", "kv_handoff", "liveness"}),
        (HealthProbed("d0", GOOD), {"stream", "inference_status", "kv_handoff"}),
        (LegSucceeded("d0", Leg.PREFILL), {"timeout", "stream", "overload", "liveness"}),
        (LegSucceeded("d0", Leg.DECODE), {"timeout", "overload", "kv_handoff", "liveness"}),
    ],
)
def test_a_successful_answer_clears_its_classes(good: Any, left: set[str]) -> None:
    fleet = fleet_of(liveness_misses=2)
    for failure in set(FailureClass) - {C.LIVENESS}:
        failed(fleet, "d0", failure)
    fleet.step(LivenessSwept("d0", BAD), NOW)
    fleet.step(good, NOW)
    assert set(fleet.standing(NOW).failures["d0"]) == left


@pytest.mark.parametrize("status", [204, 206, 301, 302, 307])
def test_an_answer_that_is_neither_a_success_nor_a_refusal_disproves_nothing(status: int) -> None:
    fleet = fleet_of()
    failed(fleet, "d0", C.CONNECTION, times=2)
    failed(fleet, "d0", C.INFERENCE_STATUS, times=2)
    fleet.step(LegAnswered("d0", Leg.DECODE, status, b"r"), NOW)
    assert fleet.standing(NOW).failures == {"d0": {"connection": 2, "inference_status": 2}}


# --- section 5: ejection and readmission ---------------------------------------------------------------


WELL = (Check("health", "passed"), Check("kv_transfer", "skipped"), Check("final_health", "passed"))


def ejected(**recovery: Any) -> Fleet:
    fleet = fleet_of(readmit_every=10, **recovery)
    failed(fleet, "d0", C.CONNECTION, times=3)
    return fleet


def test_an_ejected_engine_is_looked_at_every_readmit_every_passes() -> None:
    fleet = ejected()
    asked = [at for at in range(31) if wanted(fleet.tick(NOW + at))]
    assert asked == [10, 20, 30]


def test_when_every_check_passed_it_is_back_with_a_clean_slate() -> None:
    fleet = ejected()
    assert told(fleet.step(Validated("d0", WELL), NOW)) == [("readmission", "d0")]
    assert fleet.eligible("d0", NOW)
    assert (fleet.standing(NOW).failures, fleet.standings.verifying()) == ({}, ())


def test_a_failed_check_leaves_it_out_with_the_check_s_name_told_once() -> None:
    fleet = ejected()
    bad = Validated("d0", (Check("health", "passed"), Check("model", "failed", "no such model")))
    (event,) = fleet.step(bad, NOW)
    assert isinstance(event, Told)
    assert (event.kind, event.fields["check"]) == ("readmission_failed", "model")
    assert fleet.step(bad, NOW) == ()
    assert not fleet.eligible("d0", NOW)


def test_checks_that_our_own_pool_ended_say_nothing() -> None:
    fleet = ejected()
    assert fleet.step(Validated("d0", (Check("health", "passed"),), conclusive=False), NOW) == ()
    assert not fleet.eligible("d0", NOW)


@pytest.mark.parametrize("conclusive", [True, False])
def test_checks_that_lasted_beyond_the_next_turn_are_made_again_in_the_next_pass(conclusive: bool) -> None:
    fleet = ejected()
    asked = [at for at in range(22) if wanted(fleet.tick(NOW + at))]
    late = Validated("d0", (Check("health", "failed", "no answer"),), conclusive=conclusive)
    fleet.step(late, NOW + 22)
    asked += [at for at in range(22, 40) if wanted(fleet.tick(NOW + at))]
    assert asked == [10, 20, 22, 32]


def lost(contract: Any) -> Fleet:
    """Every engine is out since NOW."""
    fleet = fleet_of("p0 d0 d1", contract=contract, liveness_misses=1)
    for iid in fleet.engines:
        fleet.step(LivenessSwept(iid, BAD, "refused"), NOW)
    return fleet


def test_an_uncontracted_fleet_that_lost_every_engine_takes_back_each_by_itself() -> None:
    fleet = lost(None)
    assert told(fleet.step(Validated("d0", WELL), NOW + 10)) == [("readmission", "d0")]


def test_a_good_probe_or_leg_does_not_bring_an_ejected_engine_back() -> None:
    fleet = ejected(failure_quarantine_s=5.0)
    for good in (HealthProbed("d0", GOOD), InferenceProbed("d0", GOOD), LegSucceeded("d0", Leg.DECODE)):
        fleet.step(good, NOW)
        assert not fleet.eligible("d0", NOW)
    assert failed(fleet, "d0", C.STREAM, times=3) == ()
