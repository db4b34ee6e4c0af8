"""policy/liveness.py: which pass sweeps."""

from __future__ import annotations

from narwhal.policy.liveness import SweepCadence


def sweeps(every: int, passes: int) -> list[int]:
    cadence = SweepCadence(every)
    return [number for number in range(1, passes + 1) if cadence.next_pass()]


def test_every_so_many_passes() -> None:
    assert sweeps(10, 31) == [10, 20, 30]
    assert sweeps(1, 3) == [1, 2, 3]


def test_another_ownership_sweeps_after_a_whole_cadence() -> None:
    cadence = SweepCadence(10)
    assert not any(cadence.next_pass() for _ in range(9))
    cadence.begin_anew()
    assert [cadence.next_pass() for _ in range(10)] == [False] * 9 + [True]


def test_zero_is_never() -> None:
    assert sweeps(0, 100) == []
