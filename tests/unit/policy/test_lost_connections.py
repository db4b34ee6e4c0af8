"""Connections that broke behind one and the same request body, and behind others (failures.md section 2)."""

from __future__ import annotations

import pytest

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, InferenceProbed, LegFailed, ProbeOutcome
from narwhal.policy.breaker import Breaker, Proof, Verdict
from narwhal.policy.fleet import Fleet
from tests.unit.policy.test_judgement import fleet_of, told, wanted

NOW = 100.0
C = FailureClass.CONNECTION


@pytest.mark.parametrize(
    ("requests", "verdict"),
    [
        ([b"a", b"a", b"a"], Verdict.HOLD),
        ([b"a", b"a", b"b"], Verdict.EJECT),
        ([b"a", b"a", b"a", b"b"], Verdict.EJECT),
        ([b"a", b"a", b""], Verdict.EJECT),
        ([b"", b"", b""], Verdict.EJECT),
    ],
    ids=["one request", "two requests", "a second one later", "the last never arrived", "none arrived"],
)
def test_one_request_alone_asks_for_a_closer_look(requests: list[bytes], verdict: Verdict) -> None:
    seen = Breaker(eject_after=3, liveness_misses=2)
    assert [seen.failed("e0", C, request=one) for one in requests][-1] is verdict


def test_a_carried_streak_is_of_nobody_knows_which_requests() -> None:
    seen = Breaker(eject_after=3, liveness_misses=2)
    seen.restore({"e0": {"connection": 2}}, engines=["e0"])
    assert seen.failed("e0", C, request=b"a") is Verdict.EJECT


def test_requests_of_a_streak_that_is_over_do_not_count() -> None:
    seen = Breaker(eject_after=3, liveness_misses=2)
    for _ in range(2):
        seen.failed("e0", C, request=b"b")
    seen.proved("e0", Proof.DECODE)
    assert [seen.failed("e0", C, request=b"a") for _ in range(3)] == [None, None, Verdict.HOLD]


def lost(fleet: Fleet, *requests: bytes) -> tuple[Effect, ...]:
    """The effects of the last connection to d0 that broke behind these requests, "" = never made."""
    effects: tuple[Effect, ...] = ()
    for request in requests:
        way = "connection:lost" if request else "connection:connect"
        effects = fleet.step(LegFailed("d0", Leg.DECODE, C, way, "it broke", request=request), NOW)
    return effects


@pytest.mark.parametrize("requests", [(b"a", b"a", b"b"), (b"a", b"a", b""), (b"", b"", b"")])
def test_different_requests_and_connections_never_made_eject_at_once(requests: tuple[bytes, ...]) -> None:
    assert told(lost(fleet_of(), *requests)) == [("ejection", "d0")]


def test_one_request_holds_until_a_probe_has_decided() -> None:
    fleet = fleet_of()
    effects = lost(fleet, b"a", b"a", b"a")
    assert (told(effects), wanted(effects)) == ([("hold", "d0")], [ProbeWanted(ProbeKind.INFERENCE, "d0")])
    good = InferenceProbed("d0", ProbeOutcome.GOOD)
    assert told(fleet.step(good, NOW)) == [("hold_ended", "d0")]
    assert fleet.standing(NOW).failures == {}


def test_a_dead_engine_is_out_by_that_probe() -> None:
    fleet = fleet_of()
    lost(fleet, b"a", b"a", b"a")
    bad = InferenceProbed("d0", ProbeOutcome.BAD)
    assert told(fleet.step(bad, NOW)) == [("hold_ended", "d0"), ("ejection", "d0")]


def test_the_first_failure_of_another_request_ejects_whom_one_has_held() -> None:
    fleet = fleet_of()
    lost(fleet, b"a", b"a", b"a")
    assert told(lost(fleet, b"b")) == [("hold_ended", "d0"), ("ejection", "d0")]
