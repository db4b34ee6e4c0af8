"""Engines that give nothing to clients who leave early: probed, and never for impatience alone."""

from __future__ import annotations

import pytest

from narwhal.model.effect import ProbeKind
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    Evidence,
    FailureClass,
    InferenceProbed,
    LegAnswered,
    LegFailed,
    LegLeft,
    LegSucceeded,
    ProbeOutcome,
    Validated,
)
from narwhal.policy.left_legs import LeftLegs
from tests.unit.policy.test_blame import BAD, GOOD, NOW, Court, probes


def left(waited_s: float, *, at: float, limit_s: float = 10.0) -> LegLeft:
    return LegLeft("p0", Leg.PREFILL, sent_at=at - waited_s, limit_s=limit_s)


def suspected(*waits: tuple[float, float]) -> list[str]:
    """What each brought: a leg left at that second after waiting so long; `eject_after` 3."""
    machine = LeftLegs(eject_after=3)
    told = []
    for at, waited_s in waits:
        told.append(machine.left(left(waited_s, at=at), at))
        machine.check_invariants()
    return told


def test_three_that_left_after_fifteen_silent_seconds_are_a_suspicion() -> None:
    told = suspected((10.0, 5.0), (15.0, 5.0), (20.0, 5.0))
    assert told == ["", "", "it gave nothing for 15 s, and 3 clients left"]


@pytest.mark.parametrize(
    "waits",
    [
        [(10.0, 4.9), (15.0, 4.9), (20.0, 4.9)],
        [(10.0, 5.0), (10.0, 5.0), (10.0, 5.0), (19.9, 5.0)],
        [(10.0, 5.0), (40.0, 5.0)],
    ],
    ids=["none of them waited", "for less than 15 s", "two"],
)
def test_less_is_none(waits: list[tuple[float, float]]) -> None:
    assert not any(suspected(*waits))


def test_an_engine_may_compute_for_as_long_as_one_leg_may_take() -> None:
    machine = LeftLegs(eject_after=3)
    told = [machine.left(left(8.0, at=at, limit_s=120.0), at) for at in (10.0, 60.0, 110.0, 121.9, 122.0)]
    assert told == ["", "", "", "", "it gave nothing for 120 s, and 5 clients left"]


def test_the_silence_is_as_old_as_the_oldest_leg_that_was_left() -> None:
    assert suspected((10.0, 5.0), (10.0, 5.0), (11.0, 15.0))[-1]


def test_a_suspicion_is_not_repeated_before_another_silence() -> None:
    told = suspected(*[(float(at), 5.0) for at in range(10, 41, 5)])
    assert [bool(one) for one in told] == [False, False, True, False, False, True, False]


def test_it_is_probed_without_a_hold_and_out_if_that_fails() -> None:
    court = Court()
    court.now = NOW + 20
    asked = probes(court(*[left(16.0, at=court.now)] * 3))
    assert [(one.kind, one.iid, one.producer) for one in asked] == [(ProbeKind.INFERENCE, "p0", "")]
    assert (court.held, court.streaks) == ({}, {})
    court(InferenceProbed("p0", BAD, detail="no whole answer"))
    assert court.out == ("p0",)


@pytest.mark.parametrize(
    "sign",
    [
        LegSucceeded("p0", Leg.PREFILL),
        LegSucceeded("p0", Leg.DECODE, "p1"),
        LegAnswered("p0", Leg.PREFILL, 400),
        LegFailed("p0", Leg.PREFILL, FailureClass.OVERLOAD, "overload:429", "busy"),
        LegFailed("p0", Leg.PREFILL, FailureClass.INFERENCE_STATUS, "inference_status:500", "500"),
        InferenceProbed("p0", GOOD),
    ],
    ids=["a prefill", "a decode", "400", "429", "500", "a probe"],
)
def test_any_sign_of_life_begins_anew(sign: Evidence) -> None:
    court = Court()
    court.now = NOW + 20
    court(*[left(16.0, at=court.now)] * 2, sign)
    assert probes(court(left(16.0, at=court.now))) == []


@pytest.mark.parametrize(
    "sign",
    [
        LegFailed("p0", Leg.PREFILL, FailureClass.TIMEOUT, "timeout:prefill", "late"),
        LegSucceeded("p1", Leg.PREFILL),
        InferenceProbed("p0", ProbeOutcome.INCONCLUSIVE),
    ],
    ids=["a timeout", "another engine's", "a probe that told nothing"],
)
def test_what_is_none_does_not(sign: Evidence) -> None:
    court = Court()
    court.now = NOW + 20
    court(*[left(16.0, at=court.now)] * 2, sign)
    assert probes(court(left(16.0, at=court.now)))


def test_nor_is_anything_left_of_it_after_a_readmission() -> None:
    court = Court()
    court.now = NOW + 20
    court(*[left(16.0, at=court.now)] * 3, InferenceProbed("p0", BAD))
    court(*[left(16.0, at=court.now)] * 2, Validated("p0", (Check("health", "passed"),)))
    assert (court.out, probes(court(left(16.0, at=court.now)))) == ((), [])
