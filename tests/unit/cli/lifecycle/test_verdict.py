"""What a lifecycle document says of an order that is waited for: one row of the table at a time."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.cli.lifecycle.verdict import (
    Targets,
    absent,
    drain_verdict,
    failed_checks,
    out_of_placement,
    progress,
    readmitted,
)

E1, WAVE = Targets(("e1",)), Targets((), wave=True)
NO_WAVE = {"id": None, "active": False, "readiness_withdrawn": False, "ready_to_stop": False}


def row(state: str = "draining", **changes: Any) -> dict[str, Any]:
    return {
        "state": state,
        "ready_to_stop": False,
        "accepts_new": state == "active",
        "resident": {"prefill": 0, "decode": 0},
        "deadline_in_s": 12.0,
        "old_process_start": 1.0,
        "checks": [],
        **changes,
    }


def document(*, wave: dict[str, Any] | None = None, **engines: dict[str, Any]) -> dict[str, Any]:
    return {"engines": {"e0": row("active"), **engines}, "wave": {**NO_WAVE, **(wave or {})}}


def check(name: str, outcome: str) -> dict[str, str]:
    return {"name": name, "outcome": outcome, "detail": ""}


@pytest.mark.parametrize("state", ["draining", "drained", "validating", "blocked"])
def test_a_drain_that_is_on_is_waited_for(state: str) -> None:
    assert drain_verdict(E1, document(e1=row(state))) is None


def test_a_drain_is_done_when_its_engine_may_be_stopped_also_after_the_deadline() -> None:
    for state in ("drained", "blocked", "deadline_exceeded"):
        verdict = drain_verdict(E1, document(e1=row(state, ready_to_stop=True)))
        assert verdict is not None
        assert (verdict.done, verdict.sentence) == (True, "e1 may be stopped now")


def test_of_several_every_one_must_be_ready() -> None:
    targets, ready = Targets(("e1", "e2")), row("drained", ready_to_stop=True)
    assert drain_verdict(targets, document(e1=ready, e2=row())) is None
    verdict = drain_verdict(targets, document(e1=ready, e2=ready))
    assert verdict is not None and verdict.sentence == "e1 and e2 may be stopped now"


def test_a_wave_is_done_when_the_wave_says_so() -> None:
    ready = row("drained", ready_to_stop=True)
    engines = {"e0": ready, "e1": ready}
    assert drain_verdict(WAVE, document(wave={"active": True}, **engines)) is None
    verdict = drain_verdict(WAVE, document(wave={"active": True, "ready_to_stop": True}, **engines))
    assert verdict is not None and verdict.sentence == "the whole fleet may be stopped now"


def test_of_an_engine_that_is_not_listed_nothing_is_known() -> None:
    other = document(e2=row("drained", ready_to_stop=True))
    for targets in (E1, Targets(("e1", "e2"))):
        assert drain_verdict(targets, other) is None
        assert readmitted(targets, document()) is None
        assert not out_of_placement(targets, other)
        verdict = absent(targets, other, url="http://b")
        assert verdict is not None and not verdict.done
        assert verdict.sentence.startswith("the owner, http://b, does not have e1 in its fleet file")
    assert absent(E1, document(e1=row()), url="http://b") is None


def test_of_a_wave_every_engine_that_was_listed_once_is_a_target() -> None:
    wave = WAVE.grown(document(e1=row()))
    ready = {"active": True, "ready_to_stop": True}
    assert drain_verdict(wave, document(wave=ready)) is None
    assert wave.absent(document(wave=ready)) == ["e1"]
    assert progress(wave, document(), countdown=False).endswith(
        "e1 not in the fleet file of the router that owns"
    )


def test_a_deadline_that_passed_says_what_is_left() -> None:
    late = row("deadline_exceeded", resident={"prefill": 0, "decode": 3})
    verdict = drain_verdict(E1, document(e1=late))
    assert verdict is not None and not verdict.done
    assert "e1 stays out of placement and its work goes on (resident decode 3)" in verdict.sentence


def test_of_several_each_ones_work_is_told() -> None:
    late = {
        f"e{count}": row("deadline_exceeded", resident={"prefill": 0, "decode": count}) for count in (1, 2)
    }
    verdict = drain_verdict(Targets(("e1", "e2")), document(**late))
    assert verdict is not None and not verdict.done
    assert verdict.sentence.startswith(
        "the deadline passed: e1 and e2 stay out of placement and their work goes on "
        "(e1: resident decode 1; e2: resident decode 2); drain again"
    )


def test_an_engine_in_service_is_no_drained_one() -> None:
    verdict = drain_verdict(E1, document(e1=row("active")))
    assert verdict is not None and not verdict.done
    assert verdict.sentence.startswith("e1 is not drained any more")
    verdict = drain_verdict(WAVE, document(e1=row("active")))
    assert verdict is not None and verdict.sentence.startswith("e0 and e1 are not drained any more")


def test_a_readmission_is_done_when_every_target_serves() -> None:
    checks = [check("health", "passed"), check("attestation", "skipped"), check("model", "passed")]
    back = row("active", checks=checks)
    assert readmitted(WAVE, document(e0=back, e1=row("blocked"))) is None
    verdict = readmitted(WAVE, document(e0=back, e1=back))
    assert verdict is not None
    assert verdict.sentence == (
        "the whole fleet is in service again: e0 passed 2 checks, attestation skipped; "
        "e1 passed 2 checks, attestation skipped"
    )
    named = readmitted(Targets(("e0", "e1")), document(e0=back, e1=back))
    assert named is not None and named.sentence.startswith("e0 and e1 are in service again: e0 passed")
    assert readmitted(Targets(("nobody",)), document()) is None


@pytest.mark.parametrize("targets", [E1, WAVE])
def test_nobody_is_in_service_again_while_the_whole_fleet_is_held(targets: Targets) -> None:
    assert readmitted(targets, document(e1=row("active"))) is not None
    assert readmitted(targets, document(wave={"readiness_withdrawn": True}, e1=row("active"))) is None


def test_the_failed_check_of_each_target_is_told() -> None:
    blocked = row("blocked", checks=[check("health", "passed"), check("model", "failed")])
    out_by_verdict = row("active", checks=[check("health", "failed")])
    assert failed_checks(WAVE, document(e1=blocked, e2=out_by_verdict)) == {"e1": "model"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"old_process_start": None}, "e1 draining, which process it is is not on record yet, 12 s left"),
        ({"resident": {"prefill": 1, "decode": 2}}, "e1 draining, resident prefill 1, decode 2, 12 s left"),
        ({"state": "drained", "ready_to_stop": True}, "e1 drained, may be stopped"),
        ({"state": "validating"}, "e1 validating"),
    ],
)
def test_progress_is_one_line_an_engine(changes: dict[str, Any], line: str) -> None:
    assert progress(E1, document(e1=row(**changes)), countdown=True) == line
    assert "s left" not in progress(E1, document(e1=row()), countdown=False)


def test_engines_that_are_alike_are_told_together_and_many_unlike_ones_are_counted() -> None:
    ready = row("drained", ready_to_stop=True)
    alike = document(e0=ready, e1=row("validating"), e2=ready)
    assert progress(WAVE, alike, countdown=True) == "e0 and e2 drained, may be stopped; e1 validating"
    many = {f"e{number}": row(resident={"prefill": 0, "decode": number}) for number in range(1, 11)}
    told = progress(WAVE, document(e0=row("blocked"), **many), countdown=False)
    assert told == "e0 blocked; 10 engines draining"
