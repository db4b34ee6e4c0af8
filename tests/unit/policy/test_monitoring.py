from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.errors import InvariantViolation
from narwhal.model.monitoring import StageReport
from narwhal.policy.monitoring import Monitoring, MonitoringEvent

NAMES = ("telemetry", "handoff")


def report(stage: str, failure: str = "", at: float = 100.0) -> StageReport:
    return StageReport(stage=stage, at=at, duration_s=0.001, failure=failure)


def run_pass(machine: Monitoring, *failures: tuple[str, str]) -> list[MonitoringEvent]:
    failed = dict(failures)
    events: list[MonitoringEvent] = []
    for name in NAMES:
        events += machine.stage_ended(report(name, failed.get(name, "")))
    events += machine.pass_ended()
    machine.check_invariants()
    return events


def machine(limit: int = 3) -> Monitoring:
    return Monitoring(limit=limit, stages=NAMES)


def test_a_failed_stage_is_counted_told_and_dated() -> None:
    monitoring = machine()
    (event,) = monitoring.stage_ended(report("handoff", "OSError", at=123.5))
    assert event.kind == "monitoring_stage_failure"
    assert event.fields == {"stage": "handoff", "class": "OSError", "consecutive": 1}
    tally = monitoring.view().stages["handoff"]
    assert (tally.failures, tally.consecutive, tally.last_class, tally.last_at) == (1, 1, "OSError", 123.5)


def test_a_clean_stage_ends_its_own_streak_and_keeps_its_history() -> None:
    monitoring = machine()
    run_pass(monitoring, ("handoff", "OSError"))
    run_pass(monitoring, ("telemetry", "KeyError"))
    handoff = monitoring.view().stages["handoff"]
    assert (handoff.failures, handoff.consecutive, handoff.last_class) == (1, 0, "OSError")


def test_two_failed_stages_are_one_failed_pass() -> None:
    monitoring = machine()
    run_pass(monitoring, ("handoff", "OSError"), ("telemetry", "KeyError"))
    view = monitoring.view()
    assert (view.consecutive, view.failures) == (1, 2)


def test_the_limit_degrades_with_the_first_failure_of_the_streak() -> None:
    monitoring = machine(limit=3)
    run_pass(monitoring, ("telemetry", "KeyError"))
    run_pass(monitoring, ("handoff", "OSError"))
    assert not monitoring.degraded
    events = run_pass(monitoring, ("handoff", "TimeoutError"))
    assert monitoring.degraded
    assert monitoring.reason == "monitoring degraded: telemetry KeyError"
    assert [event.kind for event in events] == ["monitoring_stage_failure", "monitoring_degraded"]


def test_the_degraded_event_comes_once_for_a_streak() -> None:
    monitoring = machine(limit=1)
    run_pass(monitoring, ("handoff", "OSError"))
    events = run_pass(monitoring, ("handoff", "OSError"))
    assert [event.kind for event in events] == ["monitoring_stage_failure"]


def test_the_first_clean_pass_recovers_and_forgets_the_streak() -> None:
    monitoring = machine(limit=2)
    run_pass(monitoring, ("handoff", "OSError"))
    run_pass(monitoring, ("handoff", "OSError"))
    (event,) = run_pass(monitoring)
    assert event == MonitoringEvent("monitoring_recovered", {"failed_passes": 2})
    assert (monitoring.degraded, monitoring.reason, monitoring.view().consecutive) == (False, "", 0)
    run_pass(monitoring, ("telemetry", "KeyError"))
    run_pass(monitoring, ("telemetry", "KeyError"))
    assert monitoring.reason == "monitoring degraded: telemetry KeyError"


def test_what_fails_on_in_the_same_way_is_repeated_and_anything_else_is_news() -> None:
    monitoring, told = machine(limit=9), []
    for failure in ("OSError", "OSError", "TimeoutError", "TimeoutError", "", "TimeoutError"):
        told += [event.repeated for event in run_pass(monitoring, ("handoff", failure))]
    assert told == [False, True, False, True, False]


def test_an_owner_that_gives_up_the_fleet_has_not_recovered_from_what_it_does_not_try_any_more() -> None:
    monitoring = machine(limit=2)
    run_pass(monitoring, ("handoff", "OSError"))
    run_pass(monitoring, ("handoff", "OSError"))
    monitoring.stage_ended(report("telemetry"))  # a standby's pass
    (event,) = monitoring.pass_ended()
    assert event == MonitoringEvent("monitoring_ended", {"failed_passes": 2})
    assert (monitoring.degraded, monitoring.view().stages["handoff"].consecutive) == (False, 0)
    assert [event.repeated for event in run_pass(monitoring, ("handoff", "OSError"))] == [False]


def test_a_clean_pass_below_the_limit_tells_nothing() -> None:
    monitoring = machine(limit=2)
    run_pass(monitoring, ("handoff", "OSError"))
    assert run_pass(monitoring) == []


def test_a_report_of_an_unknown_stage_is_a_bug() -> None:
    with pytest.raises(InvariantViolation, match="rollover"):
        machine().stage_ended(report("rollover"))


passes = st.lists(st.tuples(st.sampled_from(["", "OSError"]), st.sampled_from(["", "KeyError"])), max_size=40)


@given(passes=passes, limit=st.integers(1, 5))
def test_degraded_exactly_while_the_last_limit_passes_all_failed(
    passes: list[tuple[str, str]], limit: int
) -> None:
    monitoring = machine(limit=limit)
    failed: list[bool] = []
    for telemetry, handoff in passes:
        run_pass(monitoring, ("telemetry", telemetry), ("handoff", handoff))
        failed.append(bool(telemetry or handoff))
        assert monitoring.degraded == (len(failed) >= limit and all(failed[-limit:]))
