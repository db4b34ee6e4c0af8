"""A fleet that lost every engine: the outage is told, and a contracted fleet comes back as one cohort."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted, Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    CohortProved,
    FailureClass,
    Identified,
    IdentityOutcome,
    LegFailed,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ORDER
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

NOW = 100.0
IIDS = ("d0", "d1", "p0")
WELL = tuple(Check(name, "passed") for name in ORDER)
RING_WELL = WELL[-2:]
KV_FAILED = (Check("kv_transfer", "failed", "p0 -> d0: no handoff"),)


def lost(contract: Any = "1", **recovery: Any) -> Fleet:
    """Every engine is out since NOW."""
    contract = {"vllm_version": contract} if contract else None
    fleet = fleet_of("p0 d0 d1", contract=contract, liveness_misses=1, **recovery)
    for iid in fleet.engines:
        fleet.step(Identified(iid, IdentityOutcome.LIKE, 10.0), NOW)
    for iid in fleet.engines:
        fleet.step(LivenessSwept(iid, ProbeOutcome.BAD, "refused"), NOW)
    return fleet


def told(effects: tuple[Effect, ...]) -> list[tuple[str, str]]:
    return [(one.kind, str(one.fields.get("iid", ""))) for one in effects if isinstance(one, Told)]


def cohort(effects: tuple[Effect, ...]) -> list[tuple[str, ...]]:
    probes = [one for one in effects if isinstance(one, ProbeWanted) and one.kind is ProbeKind.COHORT]
    return [one.members for one in probes]


def valid(fleet: Fleet, *iids: str, now: float = NOW + 10) -> tuple[Effect, ...]:
    effects: tuple[Effect, ...] = ()
    for iid in iids:
        effects = fleet.step(Validated(iid, WELL), now)
    return effects


def proved(fleet: Fleet, now: float = NOW + 20, **ends: tuple[Check, ...] | None) -> tuple[Effect, ...]:
    """None: nothing was shown of that one."""
    checks = {iid: Validated(iid, end or (), conclusive=end is not None) for iid, end in ends.items()}
    return fleet.step(CohortProved(tuple(checks.values())), now)


# --- the cohort --------------------------------------------------------------------------------------


def test_those_that_are_well_wait_and_prove_themselves_together_when_all_are() -> None:
    fleet = lost()
    assert told(valid(fleet, "d0")) == [("readmission_waits", "d0")]
    assert valid(fleet, "d0") == ()
    assert told(valid(fleet, "p0")) == [("readmission_waits", "p0")]
    assert cohort(fleet.tick(NOW + 11)) == []
    effects = valid(fleet, "d1")
    assert (told(effects), cohort(effects)) == ([("readmission_waits", "d1")], [IIDS])
    assert cohort(fleet.tick(NOW + 12)) == [IIDS], "asked until it is answered"
    assert fleet.available(NOW + 12) == (), "no transfer was shown yet"
    back = proved(fleet, d0=RING_WELL, d1=RING_WELL, p0=RING_WELL)
    assert told(back) == [*(("readmission", iid) for iid in IIDS), ("backend_outage_ended", "")]
    assert fleet.available(NOW + 20) == IIDS


def test_it_waits_a_minute_for_the_last_members_from_the_first_valid_one() -> None:
    fleet = lost()
    valid(fleet, "d0")
    valid(fleet, "d1", now=NOW + 40)
    assert cohort(fleet.tick(NOW + 69)) == []
    assert cohort(fleet.tick(NOW + 70)) == [("d0", "d1")]
    proved(fleet, NOW + 71, d0=RING_WELL, d1=RING_WELL)
    assert fleet.available(NOW + 71) == ("d0", "d1")
    assert told(valid(fleet, "p0", now=NOW + 72)) == [("readmission", "p0")], "peers serve"


def test_one_whose_kv_does_not_arrive_stays_out_with_the_check_and_the_others_come_back() -> None:
    fleet = lost()
    valid(fleet, *IIDS)
    effects = proved(fleet, p0=KV_FAILED, d0=RING_WELL, d1=RING_WELL)
    assert told(effects)[:3] == [("readmission_failed", "p0"), ("readmission", "d0"), ("readmission", "d1")]
    assert fleet.available(NOW + 20) == ("d0", "d1")
    assert fleet.standings.ejections.view()["p0"].step == "kv_transfer"


def test_one_of_whom_the_ring_showed_nothing_is_looked_at_again_at_once() -> None:
    fleet = lost()
    valid(fleet, *IIDS)
    proved(fleet, p0=KV_FAILED, d0=None, d1=RING_WELL)
    assert fleet.available(NOW + 20) == ("d1",)
    again = [one.iid for one in fleet.tick(NOW + 20) if isinstance(one, ProbeWanted)]
    assert "d0" in again
    assert told(valid(fleet, "d0", now=NOW + 21)) == [("readmission", "d0")]


def test_checks_that_end_before_the_last_one_bring_nobody_back() -> None:
    fleet = lost()
    valid(fleet, *IIDS)
    proved(fleet, p0=RING_WELL[:1], d0=(), d1=None)
    assert fleet.available(NOW + 20) == ()


def test_what_is_told_of_one_that_does_not_wait_is_nothing() -> None:
    fleet = lost()
    valid(fleet, "d0", "d1")
    assert proved(fleet, p0=RING_WELL) == ()
    assert fleet.available(NOW + 20) == ()


def test_a_peer_that_serves_meanwhile_is_whom_they_show_themselves_with() -> None:
    fleet = lost()
    valid(fleet, "d0")
    fleet.upkeep.drain("p0", deadline_at=1e9)
    fleet.upkeep.drains.begin("p0")
    fleet.upkeep.validated(Validated("p0", WELL), process_start=20.0, now=NOW + 11)
    assert fleet.available(NOW + 11) == ("p0",)
    fleet.tick(NOW + 12)
    assert fleet.available(NOW + 12) == ("p0",), "d0 passed before there was anybody to exchange KV with"
    assert ("readmission", "d0") in told(valid(fleet, "d0", now=NOW + 13))


def test_a_drained_engine_keeps_no_cohort_waiting_and_comes_with_none() -> None:
    fleet = lost()
    valid(fleet, "d0", "p0")
    fleet.upkeep.drain("p0", deadline_at=1e9)
    fleet.upkeep.drain("d1", deadline_at=1e9)
    assert cohort(fleet.tick(NOW + 12)) == [("d0",)]
    proved(fleet, d0=RING_WELL, p0=RING_WELL)
    assert fleet.available(NOW + 20) == ("d0",)
    assert fleet.standing(NOW + 20).ejected == ("d1", "p0")


def test_under_whole_wave_there_is_no_cohort() -> None:
    fleet = lost(engine_restart_policy="whole_wave")
    valid(fleet, *IIDS)
    assert cohort(fleet.tick(NOW + 100)) == []
    assert proved(fleet, d0=RING_WELL, d1=RING_WELL, p0=RING_WELL) == ()
    assert fleet.available(NOW + 100) == ()


# --- the outage --------------------------------------------------------------------------------------


def outage(fleet: Fleet, now: float = NOW) -> bool:
    return bool(fleet.export(now).lifecycle["backend_outage"])


def test_an_outage_is_told_when_the_last_engine_goes_and_ends_with_the_first_that_returns() -> None:
    fleet = fleet_of("p0 d0 d1", liveness_misses=1)
    gone = [fleet.step(LivenessSwept(iid, ProbeOutcome.BAD, "refused"), NOW) for iid in fleet.engines]
    assert [told(effects) for effects in gone[:2]] == [[("ejection", "d0")], [("ejection", "d1")]]
    assert told(gone[2]) == [("ejection", "p0"), ("backend_outage", "")]
    assert outage(fleet)
    assert told(fleet.tick(NOW + 1)) == [], "told once"
    assert told(valid(fleet, "d0"))[-1] == ("backend_outage_ended", "")
    assert not outage(fleet)


@pytest.mark.parametrize("wave", [False, True])
def test_engines_that_an_operator_took_are_no_outage(wave: bool) -> None:
    fleet = fleet_of("p0 d0 d1")
    if wave:
        fleet.upkeep.drain_wave("w1", deadline_at=1e9)
    else:
        for iid in fleet.engines:
            fleet.upkeep.drain(iid, deadline_at=1e9)
    assert fleet.available(NOW) == ()
    assert (outage(fleet), told(fleet.tick(NOW))) == (False, [])


def test_an_operators_wave_ends_an_outage() -> None:
    fleet = lost(None)
    assert outage(fleet)
    fleet.upkeep.drain_wave("w1", deadline_at=1e9)
    assert told(fleet.tick(NOW)) == [("backend_outage_ended", "")]
    assert not outage(fleet)


def test_engines_whose_health_or_identity_is_only_awaited_are_no_outage() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.standings.require_checks()
    assert fleet.available(NOW) == ()
    assert not outage(fleet)
    awaited = fleet_of("p0 d0 d1", contract={"vllm_version": "1"})
    assert awaited.available(NOW) == ()
    assert not outage(awaited)


def test_the_next_owner_tells_the_end_of_an_outage_that_it_took_over() -> None:
    state = lost(None).export(NOW)
    names = {"p0": "prefill", "d0": "decode", "d1": "decode"}
    document = replace(handoff_document(**names), ejected=state.ejected, lifecycle=state.lifecycle)
    after = fleet_of("p0 d0 d1")
    after.restore(document, NOW)
    assert outage(after)
    assert told(after.tick(NOW)) == [], "the owner before told it"
    assert told(valid(after, "p0"))[-1] == ("backend_outage_ended", "")
    assert not outage(after)


def test_an_outage_that_is_over_by_the_documents_own_word_is_not_carried_on() -> None:
    names = {"p0": "prefill", "d0": "decode", "d1": "decode"}
    after = fleet_of("p0 d0 d1")
    after.restore(replace(handoff_document(**names), lifecycle={"backend_outage": True}), NOW)
    assert not outage(after)
    assert told(after.tick(NOW)) == [("backend_outage_ended", "")]


def test_what_failed_while_they_waited_is_forgotten_when_they_come_back() -> None:
    fleet = lost()
    straggler = LegFailed("d0", Leg.DECODE, FailureClass.CONNECTION, "connection:lost", "gone", request=b"r")
    valid(fleet, "d0", "p0")
    for at in (11, 12, 13):
        fleet.step(straggler, NOW + at)
    valid(fleet, "d1", now=NOW + 16)
    proved(fleet, d0=RING_WELL, d1=RING_WELL, p0=RING_WELL)
    assert fleet.standing(NOW + 20).failures == {}
    fleet.step(straggler, NOW + 21)
    assert fleet.available(NOW + 21) == ("d0", "d1", "p0"), "one failure ejects nobody"


def test_what_failed_before_one_was_found_well_is_forgotten_too() -> None:
    fleet = lost()
    for iid in fleet.engines:
        fleet.step(LegFailed(iid, Leg.DECODE, FailureClass.STREAM, "stream:silence", "silent"), NOW + 1)
    valid(fleet, "d0", "p0", "d1")
    assert proved(fleet, d0=RING_WELL, d1=RING_WELL, p0=KV_FAILED) != ()
    assert dict(fleet.standing(NOW + 20).failures) == {"p0": {"liveness": 1, "stream": 1}}
