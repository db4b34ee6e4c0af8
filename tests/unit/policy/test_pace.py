"""Probes come every so many monitor passes, however early or late in its interval a pass is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import EdgeProbed, FailureClass, InferenceProbed, ProbeOutcome
from narwhal.policy.fleet import Fleet
from narwhal.policy.pace import Pace
from tests.unit.policy.test_judgement import failed, fleet_of

NOW = 100.0
PASSES = 1000


def test_it_is_due_at_the_nearest_pass() -> None:
    pace = Pace(10, 2.0)
    assert pace.every_s == 20.0
    assert pace.after(NOW) == NOW + 19.0
    assert pace.after(NOW, turns=2) == NOW + 39.0


@given(
    passes=st.integers(1, 20),
    interval_s=st.floats(0.05, 60.0),
    turns=st.integers(1, 3),
    early=st.floats(0.0, 0.49),
    late=st.floats(0.0, 0.49),
)
def test_a_pass_that_is_less_than_half_an_interval_off_is_the_right_one(
    passes: int, interval_s: float, turns: int, early: float, late: float
) -> None:
    due_at = Pace(passes, interval_s).after(NOW + late * interval_s, turns=turns)
    assert NOW + (turns * passes - 1 + early) * interval_s < due_at
    due_at = Pace(passes, interval_s).after(NOW, turns=turns)
    assert NOW + (turns * passes - early) * interval_s >= due_at
    assert NOW + (turns * passes - 1 + late) * interval_s < due_at


# --- the machines that probe ---


def ejected(fleet: Fleet) -> None:
    failed(fleet, "d0", FailureClass.CONNECTION, times=3)


def held(fleet: Fleet) -> None:
    failed(fleet, "d0", FailureClass.STREAM, times=3)


def avoided(fleet: Fleet) -> None:
    fleet.step(EdgeProbed("p0", "d0", ProbeOutcome.BAD), NOW)


def relapsed(fleet: Fleet) -> None:
    """Its probe rests for one interval, then for two."""
    held(fleet)
    fleet.step(InferenceProbed("d0", ProbeOutcome.GOOD), NOW)
    held(fleet)


def jittered(jitter_s: float) -> Iterator[tuple[int, float]]:
    random = Random(7)
    for number in range(1, PASSES):
        yield number, NOW + number + random.uniform(0.0, jitter_s)


SUSPECTS = (
    pytest.param(ejected, ProbeKind.READMISSION, id="readmission"),
    pytest.param(held, ProbeKind.INFERENCE, id="inference"),
    pytest.param(avoided, ProbeKind.EDGE, id="edge"),
    pytest.param(relapsed, ProbeKind.INFERENCE, id="after a rest"),
)


@pytest.mark.parametrize("jitter_s", [0.0, 0.003, 0.3])
@pytest.mark.parametrize("every", [1, 2, 10])
@pytest.mark.parametrize(("suspect", "kind"), SUSPECTS)
def test_no_probe_misses_its_turn(
    suspect: Callable[[Fleet], None], kind: ProbeKind, every: int, jitter_s: float
) -> None:
    fleet = fleet_of(readmit_every=every)
    suspect(fleet)
    asked = [0]
    for number, now in jittered(jitter_s):
        wanted = [one for one in fleet.tick(now) if isinstance(one, ProbeWanted) and one.iid == "d0"]
        asked += [number for one in wanted if one.kind is kind]
    assert {later - earlier for earlier, later in pairwise(asked)} == {every}


@pytest.mark.parametrize("jitter_s", [0.003, 0.3])
def test_an_answer_that_tells_nothing_keeps_the_cadence(jitter_s: float) -> None:
    fleet = fleet_of(readmit_every=10)
    held(fleet)
    asked = [0]
    for number, now in jittered(jitter_s):
        for one in fleet.tick(now):
            if isinstance(one, ProbeWanted) and one.kind is ProbeKind.INFERENCE:
                asked.append(number)
                open_ = InferenceProbed("d0", ProbeOutcome.INCONCLUSIVE, number=one.number)
                fleet.step(open_, now + 0.1)
    assert {later - earlier for earlier, later in pairwise(asked)} == {10}


@pytest.mark.parametrize("jitter_s", [0.0, 0.003, 0.3])
def test_a_second_relapse_rests_for_two_intervals_of_passes(jitter_s: float) -> None:
    fleet = fleet_of(readmit_every=10)
    relapsed(fleet)
    asked: list[int] = []
    for number, now in jittered(jitter_s):
        for one in fleet.tick(now):
            if isinstance(one, ProbeWanted) and one.kind is ProbeKind.INFERENCE:
                asked.append(number)
                fleet.step(InferenceProbed("d0", ProbeOutcome.GOOD, number=one.number), now)
                failed(fleet, "d0", FailureClass.STREAM, times=3, now=now)
    assert {later - earlier for earlier, later in pairwise(asked)} == {20}
    assert asked[0] == 10
