"""Evidence of an earlier ownership counts for nothing in the next one (cluster.md section 6)."""

from __future__ import annotations

from narwhal.model.decoding import DecodeSeen
from narwhal.model.effect import RequestSuspected, Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegAnswered, LegFailed, LegSucceeded, ProcessSeen
from narwhal.policy.fleet import Fleet
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of, told

NOW = 100.0
LATER = NOW + 20.0


def owns_again(fleet: Fleet) -> None:
    """It lost the fleet, and gets it back with a document that tells of no trouble."""
    document = handoff_document(**{iid: role.value for iid, role in fleet.roles().items()})
    assert fleet.restore(document, LATER) == ()


def test_refusals_begin_anew() -> None:
    fleet = fleet_of()
    for request in (b"a", b"b"):
        fleet.step(LegAnswered("p0", Leg.PREFILL, 404, request), NOW)
    owns_again(fleet)
    assert fleet.step(LegAnswered("p0", Leg.PREFILL, 404, b"c"), LATER) == ()


def busy(fleet: Fleet, now: float) -> tuple[object, ...]:
    way = "overload:429"
    return fleet.step(LegFailed("p0", Leg.PREFILL, FailureClass.OVERLOAD, way, "busy", retry_after_s=60), now)


def test_back_pressure_begins_anew() -> None:
    fleet = fleet_of()
    for after_s in (0, 10, 19):
        busy(fleet, NOW + after_s)
    owns_again(fleet)
    assert not [one for one in busy(fleet, NOW + 31) if isinstance(one, Told)]


def test_failed_requests_are_forgotten() -> None:
    fleet = fleet_of()

    def poison(iid: str) -> LegFailed:
        return LegFailed(
            iid, Leg.PREFILL, FailureClass.INFERENCE_STATUS, "inference_status:500", "x", "", b"a"
        )

    fleet.step(poison("p0"), NOW)
    owns_again(fleet)
    effects = fleet.step(poison("p1"), LATER)
    assert not [one for one in effects if isinstance(one, RequestSuspected)]


def test_processes_are_met_anew() -> None:
    fleet = fleet_of()
    fleet.step(ProcessSeen("p0", 1.0), NOW)
    fleet.step(LegSucceeded("p1", Leg.PREFILL, "", "old"), NOW)
    owns_again(fleet)
    assert fleet.step(ProcessSeen("p0", 2.0), LATER) == ()
    assert fleet.step(LegSucceeded("p1", Leg.PREFILL, "", "new"), LATER) == ()


def test_drift_begins_anew_and_its_penalty_ends() -> None:
    fleet = fleet_of()
    now = drifted(fleet)
    assert fleet.pacing.probation == ("d0",)
    scored = fleet.pacing.health(now)["d0"].scored
    owns_again(fleet)
    assert fleet.pacing.probation == ()
    health = fleet.pacing.health(now)["d0"]
    assert (health.scored, health.last_scored_s_ago) == (scored, None), "counters never go back"


def drifted(fleet: Fleet) -> float:
    """d0 was well and is slow until it is on probation; when that was."""
    now = NOW
    for interval_s in (0.01,) * 200 + (0.1,) * 2000:
        now += 1.0
        fleet.pacing.roll([DecodeSeen("d0", interval_s, 1.0, 100.0)], now)
        fleet.pacing.close(now)
        if fleet.pacing.probation:
            return now
    raise AssertionError("it is never on probation")


def test_decisions_on_roles_are_of_the_ownership() -> None:
    fleet = fleet_of("p0 p1 d0")
    for _ in range(3):
        fleet.step(LegFailed("d0", Leg.DECODE, FailureClass.CONNECTION, "connection:connect", "x"), NOW)
    assert told(fleet.control(NOW)) == [("role_change", "p0")]
    assert len(fleet.split.role_control.flips) == 1
    owns_again(fleet)
    control = fleet.split.role_control
    assert (len(control.flips), len(control.refused), control.last) == (0, 0, None)
