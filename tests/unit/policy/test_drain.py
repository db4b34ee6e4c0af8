"""The records of drained engines, row by row of the table in `narwhal.policy.drain`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.evidence import Check
from narwhal.model.maintenance import Captured, DrainState, WorkLeft
from narwhal.policy.drain import INTERRUPTED, KNOWN_NOW, UNREADABLE, Drains, IllegalMove, proves
from narwhal.policy.readmission import ORDER

BEFORE = Captured(100.0, "0.11.0", "sha256:aa")
NOTHING_LEFT = WorkLeft(0, 0, 0, 0, 0)
PASSED = tuple(Check(name, "passed") for name in ORDER)
FAILED = (Check("health", "passed"), Check("process", "failed", "not newer"))


def drained(*, captured: bool = True) -> Drains:
    """e0 is draining until 1000, e1 is active."""
    drains = Drains(["e1", "e0"])
    drains.drain("e0", deadline_at=1000.0)
    if captured:
        drains.captured("e0", BEFORE)
    return drains


def state(drains: Drains, iid: str = "e0") -> DrainState:
    drains.check_invariants()
    return drains.record(iid).state


def test_a_drain_takes_the_engine_out_before_anything_is_known_of_it() -> None:
    drains = drained(captured=False)
    assert (state(drains), drains.out()) == (DrainState.DRAINING, {"e0"})
    assert drains.record("e0").captured is None


def test_a_drain_again_changes_nothing_but_a_later_deadline() -> None:
    drains = drained()
    assert not drains.drain("e0", deadline_at=900.0)
    assert drains.record("e0").deadline_at == 1000.0
    assert not drains.drain("e0", deadline_at=1100.0)
    assert (drains.record("e0").deadline_at, drains.record("e0").captured) == (1100.0, BEFORE)


def test_a_later_deadline_after_the_first_one_passed_drains_on() -> None:
    drains = drained()
    drains.expire(1000.0)
    drains.drain("e0", deadline_at=1100.0)
    assert state(drains) is DrainState.DRAINING
    assert (drains.expire(1099.9), drains.expire(1100.0)) == ((), ("e0",))


def test_only_the_first_process_is_the_drained_one() -> None:
    drains = drained()
    drains.captured("e0", Captured(200.0, "0.12.0"))
    assert drains.record("e0").captured == BEFORE


@pytest.mark.parametrize("name", ["prefill", "decode", "held_kv", "running", "waiting"])
def test_work_of_any_kind_keeps_it_from_being_stopped(name: str) -> None:
    drains = drained()
    assert not drains.settle("e0", replace(NOTHING_LEFT, **{name: 1}))
    assert (state(drains), drains.record("e0").ready_to_stop) == (DrainState.DRAINING, False)
    assert drains.settle("e0", NOTHING_LEFT)
    assert (state(drains), drains.record("e0").ready_to_stop) == (DrainState.DRAINED, True)


def test_what_blocked_it_for_want_of_its_process_is_over_when_that_is_on_record() -> None:
    drains = drained(captured=False)
    drains.begin("e0")
    drains.block("e0", FAILED, error="e0 stays out: repeat the drain")
    drains.captured("e0", BEFORE)
    assert drains.record("e0").error == f"e0 {KNOWN_NOW}"
    drains.captured("e0", BEFORE)
    assert state(drains) is DrainState.BLOCKED


def test_without_its_process_on_record_it_is_not_ready() -> None:
    drains = drained(captured=False)
    assert not drains.settle("e0", NOTHING_LEFT)
    drains.captured("e0", BEFORE)
    assert drains.settle("e0", NOTHING_LEFT)


def test_when_the_deadline_passes_it_stays_out_and_is_drained_later() -> None:
    drains = drained()
    assert (drains.expire(999.9), drains.expire(1000.0), drains.expire(1001.0)) == ((), ("e0",), ())
    assert (state(drains), drains.out()) == (DrainState.DEADLINE_EXCEEDED, {"e0"})
    assert drains.settle("e0", NOTHING_LEFT)
    assert (state(drains), drains.expire(2000.0)) == (DrainState.DRAINED, ())


def test_every_check_brings_it_back_and_the_checks_can_be_read_until_the_next_drain() -> None:
    drains = drained()
    drains.begin("e0")
    assert (state(drains), drains.out()) == (DrainState.VALIDATING, {"e0"})
    drains.passed("e0", PASSED, process_start=200.0)
    record = drains.record("e0")
    assert (state(drains), drains.out(), drains.export()) == (DrainState.ACTIVE, set(), [])
    assert (record.checks, record.new_process_start, record.deadline_at) == (PASSED, 200.0, None)
    drains.drain("e0", deadline_at=3000.0)
    assert (drains.record("e0").checks, drains.record("e0").captured) == ((), None)


def test_a_failed_check_blocks_it_and_it_may_be_tried_again() -> None:
    drains = drained()
    drains.begin("e0")
    drains.block("e0", FAILED, error="e0 stays out")
    assert (state(drains), drains.out(), drains.record("e0").error) == (
        DrainState.BLOCKED,
        {"e0"},
        "e0 stays out",
    )
    drains.drain("e0", deadline_at=9000.0)
    assert state(drains) is DrainState.BLOCKED
    assert drains.settle("e0", NOTHING_LEFT), "a blocked engine may be stopped once its probes have ended"
    drains.begin("e0")
    assert (state(drains), drains.record("e0").error) == (DrainState.VALIDATING, "")


@pytest.mark.parametrize("checks", [(), FAILED])
def test_there_is_no_way_back_without_every_check(checks: tuple[Check, ...]) -> None:
    drains = drained()
    with pytest.raises(IllegalMove):
        drains.passed("e0", PASSED, process_start=200.0)
    drains.begin("e0")
    with pytest.raises(IllegalMove):
        drains.passed("e0", checks, process_start=200.0)
    assert (state(drains), drains.out()) == (DrainState.VALIDATING, {"e0"})


@pytest.mark.parametrize(("asked", "deadline_at"), [(900.0, 1000.0), (3000.0, 3000.0)])
@pytest.mark.parametrize("wave_id", [None, "w1"])
def test_a_drain_ends_a_validation_and_is_one(asked: float, deadline_at: float, wave_id: str | None) -> None:
    drains = drained()
    drains.begin("e0")
    assert drains.drain("e0", deadline_at=asked, wave_id=wave_id)
    record = drains.record("e0")
    assert (state(drains), record.deadline_at, record.wave_id) == (DrainState.DRAINING, deadline_at, wave_id)
    assert (record.captured, record.checks, drains.unsettled()) == (BEFORE, (), ("e0",))
    with pytest.raises(IllegalMove):
        drains.passed("e0", PASSED, process_start=200.0)
    assert drains.settle("e0", NOTHING_LEFT)
    assert state(drains) is DrainState.DRAINED


@pytest.mark.parametrize("name", ORDER)
def test_only_an_attestation_and_a_transfer_may_be_skipped(name: str) -> None:
    checks = tuple(replace(one, outcome="skipped") if one.name == name else one for one in PASSED)
    assert proves(checks) == (name in ("attestation", "kv_transfer"))


def test_an_active_engine_is_not_validated_and_none_is_twice_at_once() -> None:
    drains = drained()
    with pytest.raises(IllegalMove):
        drains.begin("e1")
    drains.begin("e0")
    with pytest.raises(IllegalMove):
        drains.begin("e0")


# --- the next owner --------------------------------------------------------------------------------


def handed_on(drains: Drains, *engines: str) -> Drains:
    after = Drains(engines or ("e0", "e1"))
    after.restore(drains.export())
    after.check_invariants()
    return after


def test_a_drained_engine_stays_drained_and_its_work_is_looked_at_anew() -> None:
    drains = drained()
    drains.settle("e0", NOTHING_LEFT)
    after = handed_on(drains)
    assert after.record("e0") == replace(drains.record("e0"), ready_to_stop=False)
    assert after.unsettled() == ("e0",)
    assert after.settle("e0", NOTHING_LEFT)
    assert after.export() == drains.export()


def test_a_validation_of_the_owner_before_is_blocked() -> None:
    drains = drained()
    drains.begin("e0")
    after = handed_on(drains)
    assert (state(after), after.record("e0").error) == (DrainState.BLOCKED, INTERRUPTED)


def test_a_blocked_engine_keeps_its_checks_and_its_sentence() -> None:
    drains = drained()
    drains.begin("e0")
    drains.block("e0", FAILED, error="e0 stays out", process_start=100.0)
    assert handed_on(drains).record("e0") == drains.record("e0")


def test_records_of_engines_that_are_gone_are_left_out() -> None:
    assert handed_on(drained(), "e1", "e2").out() == set()


@pytest.mark.parametrize("row", [{}, {"state": "new word"}, {"state": "drained", "checks": 3}, {"state": []}])
def test_a_record_that_cannot_be_read_keeps_its_engine_out(row: dict[str, object]) -> None:
    drains = Drains(["e0"])
    drains.restore([{"engine": "e0", **row}])
    assert (state(drains), drains.record("e0").error) == (DrainState.BLOCKED, UNREADABLE)


@pytest.mark.parametrize("rows", [None, 3, {}, [3], [{"engine": 3}], [{"engine": []}]])
def test_records_of_another_shape_are_none(rows: object) -> None:
    drains = drained()
    drains.restore(rows)
    assert drains.out() == set()
