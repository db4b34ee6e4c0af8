"""A wave, row by row of the table in `narwhal.policy.wave`."""

from __future__ import annotations

import pytest

from narwhal.model.maintenance import WaveState
from narwhal.policy.drain import IllegalMove
from narwhal.policy.wave import UNREADABLE, Wave


def state(wave: Wave) -> tuple[WaveState, str | None, str]:
    wave.check_invariants()
    return wave.state, wave.wave_id, wave.reason


def drained() -> Wave:
    wave = Wave()
    wave.drain("w1")
    return wave


def test_nothing_is_on_at_first() -> None:
    assert state(Wave()) == (WaveState.OFF, None, "")
    assert Wave().export() is None


def test_what_requires_a_wave_is_told_and_the_first_reason_stays() -> None:
    wave = Wave()
    assert wave.require("e1 was ejected")
    assert not wave.require("e2 was ejected")
    assert state(wave) == (WaveState.REQUIRED, None, "whole-wave restart required: e1 was ejected")


def test_a_drain_begins_a_wave_and_again_keeps_its_id() -> None:
    wave = Wave()
    wave.require("e1 was ejected")
    assert wave.drain("w1")
    assert not wave.drain("w2")
    assert not wave.require("e2 was ejected")
    assert state(wave) == (WaveState.DRAINING, "w1", "whole-wave drain w1")


def test_a_readmission_that_is_blocked_leaves_the_wave_recovering() -> None:
    wave = drained()
    wave.begin()
    wave.block("e1 stays out")
    assert state(wave) == (WaveState.RECOVERING, "w1", "whole-wave recovery w1")
    assert wave.error == "e1 stays out"
    wave.begin()
    assert wave.error == ""


def test_a_wave_that_is_complete_holds_nobody() -> None:
    wave = drained()
    wave.begin()
    wave.complete()
    assert state(wave) == (WaveState.OFF, None, "")


@pytest.mark.parametrize("move", [Wave.begin, Wave.complete])
def test_there_is_no_way_back_without_a_drained_wave(move) -> None:
    wave = Wave()
    wave.require("e1 was ejected")
    with pytest.raises(IllegalMove):
        move(wave)
    assert wave.state is WaveState.REQUIRED


def test_a_drained_wave_is_not_complete() -> None:
    with pytest.raises(IllegalMove):
        drained().complete()


def test_what_travels_is_the_same_for_the_next_owner() -> None:
    required, recovering = Wave(), drained()
    required.require("e1 was ejected")
    recovering.begin()
    for before in (Wave(), required, drained(), recovering):
        after = drained()
        assert after.restore(before.export()) == "", "the owner before has told it"
        assert state(after) == state(before)


@pytest.mark.parametrize(
    "told",
    [True, [], {}, {"state": "draining"}, {"state": "draining", "id": 7}, {"state": "off", "id": "w1"}],
)
def test_a_wave_that_cannot_be_read_requires_one(told: object) -> None:
    wave = Wave()
    assert wave.restore(told) == UNREADABLE
    assert state(wave) == (WaveState.REQUIRED, None, f"whole-wave restart required: {UNREADABLE}")
