"""Back-pressure lowers an engine's share for as long as it asked; nothing but 429 for 30 s is a fault."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.policy.back_pressure import ASKED_S, MOST_ASKED_S, SATURATED_S, BackPressure

NOW = 100.0


def asks(retry_after_s: float | None = None, way: str = "overload:429", iid: str = "e0") -> LegFailed:
    return LegFailed(iid, Leg.PREFILL, FailureClass.OVERLOAD, way, "busy", retry_after_s=retry_after_s)


def fails(failure: FailureClass) -> LegFailed:
    return LegFailed("e0", Leg.DECODE, failure, f"{failure}:x", "broken")


def machine(eject_after: int = 3) -> BackPressure:
    return BackPressure(eject_after=eject_after, every_s=10.0)


@pytest.mark.parametrize(
    ("asked_s", "lasts_s"), [(None, ASKED_S), (7.0, 7.0), (1e9, MOST_ASKED_S), (0.0, 0.0), (-3.0, 0.0)]
)
def test_an_engine_is_relieved_for_as_long_as_it_asked(asked_s: float | None, lasts_s: float) -> None:
    pressure = machine()
    assert pressure.idle
    assert pressure.failed(asks(asked_s), NOW) == ""
    assert dict(pressure.relieved(NOW)) == ({"e0": NOW + lasts_s} if lasts_s else {})
    assert dict(pressure.relieved(NOW + lasts_s)) == {}
    assert pressure.idle


def test_the_later_end_counts_and_each_engine_has_its_own() -> None:
    pressure = machine()
    pressure.failed(asks(5.0), NOW)
    pressure.failed(asks(1.0), NOW + 1)
    pressure.failed(asks(2.0, iid="e1"), NOW + 1)
    assert dict(pressure.relieved(NOW + 1)) == {"e0": NOW + 5, "e1": NOW + 3}
    assert pressure.next_end(NOW + 1) == NOW + 3
    assert pressure.next_end(NOW + 5) == inf


def test_a_408_relieves_too_and_is_another_answer_than_429() -> None:
    pressure = machine(1)
    pressure.failed(asks(), NOW)
    assert pressure.failed(asks(way="overload:408"), NOW + SATURATED_S) == ""
    assert not pressure.idle
    assert pressure.failed(asks(), NOW + SATURATED_S) == "", "begins anew"


def test_other_failures_relieve_nobody() -> None:
    pressure = machine()
    for failure in set(FailureClass) - {FailureClass.OVERLOAD}:
        assert pressure.failed(fails(failure), NOW) == ""
    assert pressure.idle


def test_nothing_but_429_for_30_s_is_a_fault() -> None:
    pressure = machine()
    told = [pressure.failed(asks(), NOW + after_s) for after_s in (0, 10, 20, 29.9, 30, 31)]
    assert told[:4] == [""] * 4
    assert told[4:] == ["nothing but 429 for 30 s, 5 times", "nothing but 429 for 31 s, 6 times"]


def test_a_few_429_far_apart_are_no_fault() -> None:
    pressure = machine()
    assert [pressure.failed(asks(), NOW + after_s) for after_s in (0, 40)] == [""] * 2


@pytest.mark.parametrize(
    "failure", [FailureClass.STREAM, FailureClass.INFERENCE_STATUS, FailureClass.KV_HANDOFF]
)
def test_any_other_answer_between_begins_anew(failure: FailureClass) -> None:
    pressure = machine(1)
    pressure.failed(asks(), NOW)
    pressure.failed(fails(failure), NOW + 29)
    assert pressure.failed(asks(), NOW + 30) == ""
    pressure.answered("e0")
    assert pressure.failed(asks(), NOW + 59) == ""
    pressure.forget("e0")
    assert pressure.failed(asks(), NOW + 88) == ""


@pytest.mark.parametrize("failure", [FailureClass.CONNECTION, FailureClass.TIMEOUT])
def test_no_answer_at_all_between_changes_nothing(failure: FailureClass) -> None:
    pressure = machine(1)
    pressure.failed(asks(), NOW)
    pressure.failed(asks(), NOW + 15)
    pressure.failed(fails(failure), NOW + 29)
    assert pressure.failed(asks(), NOW + 30) != ""


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.floats(0.0, 20.0), st.sampled_from([None, 0.5, 30.0, 500.0])),
    max_size=40,
)


@given(steps=STEPS)
def test_every_relief_ends(steps: list[tuple[str, float, float | None]]) -> None:
    pressure, now = machine(), NOW
    for iid, by_s, asked_s in steps:
        now += by_s
        pressure.failed(asks(asked_s, iid=iid), now)
        pressure.check_invariants(now)
        assert iid in pressure.relieved(now)
    assert dict(pressure.relieved(now + MOST_ASKED_S)) == {}


def test_a_probe_that_is_told_later_counts_and_is_a_fault_only_after_30_s_of_them() -> None:
    pressure = machine()
    assert not any(pressure.probed("e0", NOW + after_s) for after_s in (0, 10, 20))
    assert pressure.probed("e0", NOW + SATURATED_S)
    pressure.answered("e0")
    assert not pressure.probed("e0", NOW + SATURATED_S + 1)


def test_an_old_429_and_a_burst_are_no_30_s_of_nothing_else() -> None:
    pressure = machine()
    pressure.failed(asks(), NOW)
    assert [pressure.failed(asks(), NOW + after_s) for after_s in (600, 600.1, 600.2)] == [""] * 3
    assert not pressure.probed("e0", NOW + 601)
    assert not pressure.probed("e0", NOW + 611)
    assert not pressure.probed("e0", NOW + 621)
    assert pressure.probed("e0", NOW + 631)


@pytest.mark.parametrize(("asked_s", "pause_s"), [(None, 15.0), (40.0, 45.0), (500.0, 65.0)])
def test_it_is_nothing_but_429_only_while_they_come(asked_s: float | None, pause_s: float) -> None:
    """As long as it asked or as probes pause, and 5 s."""
    pressure, late = machine(1), machine(1)
    for times in range(3):
        pressure.failed(asks(asked_s), NOW + times * pause_s)
    assert pressure.failed(asks(asked_s), NOW + 3 * pause_s) != ""
    assert [late.failed(asks(asked_s), NOW + times * (pause_s + 0.1)) for times in range(4)] == [""] * 4


@pytest.mark.parametrize(("asked_s", "pause_s"), [(None, 15.0), (40.0, 45.0), (500.0, 65.0)])
def test_whoever_said_429_once_is_saturated_for_as_long_and_then_nobody_knows(
    asked_s: float | None, pause_s: float
) -> None:
    pressure = machine()
    pressure.failed(asks(asked_s), NOW)
    assert set(pressure.saturated(NOW + pause_s)) == set(pressure.counted) == {"e0"}
    assert set(pressure.saturated(NOW + pause_s + 0.1)) == set(pressure.counted) == set()
