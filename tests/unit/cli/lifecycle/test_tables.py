"""The lifecycle document for people: what is wrong stands below the table, once."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from narwhal.cli.lifecycle.tables import lifecycle_view


def row(state: str = "active", **changes: Any) -> dict[str, Any]:
    return {
        "state": state, "draining": state != "active", "accepts_new": state == "active",
        "ready_to_stop": False, "resident": {"prefill": 0, "decode": 2}, "deadline_at": None,
        "deadline_in_s": None, "old_process_start": None, "new_process_start": None, "checks": [],
        "error": "", **changes,
    }  # fmt: skip


def shown(
    *,
    wave: dict[str, Any] | None = None,
    owns: bool = True,
    carried: dict[str, Any] | None = None,
    **engines: dict[str, Any],
) -> list[str]:
    document = {
        "router": {"controls_fleet": owns, "role": "active" if owns else "standby", "epoch": 7},
        "engine_restart_policy": "whole_wave",
        "process_starts": {"e8": 1_800_000_000.5, "e9": 1_700_000_000.0},
        "wave": {
            "id": None, "active": False, "readiness_withdrawn": False, "ready_to_stop": False, **(wave or {})
        },
        "engines": engines,
        **({"carried": carried} if carried is not None else {}),
    }  # fmt: skip
    console = Console(width=160, highlight=False)
    with console.capture() as captured:
        console.print(lifecycle_view(document))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_it_says_who_told_it() -> None:
    assert shown()[0] == "told by the owner (epoch 7); engine_restart_policy whole_wave"
    assert shown(owns=False)[0].startswith("told by a router that does not own (standby)")


def test_an_engine_is_a_row() -> None:
    lines = shown(
        e0=row(),
        e1=row("draining", deadline_at=9.0, deadline_in_s=12.4, old_process_start=1_800_000_000.5),
        e2=row("deadline_exceeded", deadline_at=9.0, deadline_in_s=0.0),
    )
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.startswith("e")}
    assert rows["e0"] == "active yes - 0 + 2 - -"
    assert rows["e1"] == "draining no no 0 + 2 in 12 s 01-15 08:00:00"
    assert rows["e2"] == "deadline exceeded no no 0 + 2 passed -"


def test_an_engine_in_service_shows_the_process_that_was_accepted() -> None:
    lines = shown(e8=row(), e9=row("draining", old_process_start=1_800_000_000.5))
    assert [line.split()[-2:] for line in lines if line.startswith("e")][1:] == 2 * [["01-15", "08:00:00"]]


@pytest.mark.parametrize("start", [1e17, -1.0, 10**400, "soon"])
def test_a_time_that_no_calendar_has_keeps_nobody_from_reading_the_rest(start: Any) -> None:
    lines = shown(e0=row("drained", old_process_start=start), e1=row())
    assert next(line.split()[-1] for line in lines if line.startswith("e0")) == "?"
    assert any(line.startswith("e1") for line in lines)


def test_what_blocks_an_engine_stands_below_with_its_checks() -> None:
    checks = [
        {"name": "health", "outcome": "passed", "detail": ""},
        {"name": "model", "outcome": "failed", "detail": "lists another"},
    ]
    blocked = row("blocked", checks=checks, error="e1 stays out: the check model failed")
    lines = shown(e0=row(error="stood still"), e1=blocked)
    below = lines[lines.index("e0: stood still") :]
    assert below == [
        "e0: stood still",
        "",
        "e1 stays out: the check model failed",
        "  passed  health",
        "  failed  model         lists another",
    ]


def test_members_that_wait_for_another_do_not_repeat_what_they_passed() -> None:
    passed = [{"name": "health", "outcome": "passed", "detail": ""}]
    lines = shown(e0=row("blocked", checks=passed, error="e0 stays out with its wave: e1 ..."))
    assert lines[-1] == "e0 stays out with its wave: e1 ..."


def test_a_wave_and_a_fleet_that_needs_one_are_told_in_the_head() -> None:
    on = {"id": "wave-7", "active": True, "readiness_withdrawn": True, "ready_to_stop": True}
    assert shown(wave=on)[1] == "wave-7, /ready is withdrawn, every engine may be stopped"
    assert shown(wave=on | {"ready_to_stop": False})[1].endswith("not ready to stop yet")
    held = {"readiness_withdrawn": True}
    assert shown(wave=held)[1].startswith("the fleet is held until it is drained and restarted as a wave")
    assert shown()[1] == ""


def test_engines_that_the_fleet_file_does_not_have_stand_last_and_in_no_row() -> None:
    """The router keeps what was said of them for an owner that has them; an earlier version tells none."""
    carried = {
        "x0": {"state": "deadline_exceeded", "ejected": True, "held": False},
        "x1": {"state": "active", "ejected": False, "held": True},
    }
    lines = shown(e0=row(), carried=carried)
    assert lines[-3:] == [
        "",
        "x0 is not in this router's fleet file, and stays deadline exceeded and ejected",
        "x1 is not in this router's fleet file, and stays held",
    ]
    assert shown(e0=row(), carried={}) == shown(e0=row()) == lines[:-3]
