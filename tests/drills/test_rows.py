"""Each row of `narwhal cluster drill` once, on real processes, judged as the command judges it.

All rows that need the same share one cluster, as in the command itself. Bounds of time are those of
liveness: machines that run tests are busy. DRILL_OUTAGE_S (8 here) is a minute with `make drills`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import partial

import pytest

from narwhal.cli.drill.faults import stop_store
from narwhal.cli.drill.report import row_document
from narwhal.cli.drill.rows import ROWS
from narwhal.cli.drill.run import Ears, Outcome, Plan, run_rows
from narwhal.cli.drill.stage import Setting
from narwhal.cli.drill.traffic import Load
from narwhal.cli.drill.verdict import broken
from tests.support.redis import binary, on

SLACK_S = 30.0
LOAD = Load(rate=12.0, tokens=5, stream_s=0.5)
OUTAGE_S = float(os.environ.get("DRILL_OUTAGE_S", "8"))
HERE = {**ROWS, "failsafe": replace(ROWS["failsafe"], act=partial(stop_store, outage_s=OUTAGE_S))}
UNNOTICED = [name for name, row in ROWS.items() if row.goal_s is None]
SILENT, BACK = "the store gives no answer", "the store answers again"
LINES = 6
"""Lines of one outage: silent, back, and each change of what fail-safe mode or another owner does."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    plan = Plan(Setting(binary(on("valkey")), interval_s=LOAD.stream_s / LOAD.tokens), LOAD, slack_s=SLACK_S)

    def take(outcome: Outcome) -> None:
        found[outcome.name] = outcome

    folder = tmp_path_factory.mktemp("rows")
    asyncio.run(run_rows(HERE, plan, folder=folder, ears=Ears(print, take)))
    for outcome in found.values():
        print(row_document(outcome, plan))
    return found


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert list(broken(outcome, SLACK_S)) == []
    assert len(outcome.shots) == 1
    assert outcome.probes > 0
    assert outcome.books.count("whole") > outcome.sent / 2 > 0


@pytest.mark.parametrize("name", [name for name in ROWS if name not in UNNOTICED])
def test_another_router_owns_afterwards(name: str, outcomes: dict[str, Outcome]) -> None:
    (shot,) = outcomes[name].shots
    assert shot.epochs[0] < shot.epochs[1]
    assert shot.taken is not None


@pytest.mark.parametrize("name", UNNOTICED)
def test_no_client_notices_what_the_lease_outlasts(name: str, outcomes: dict[str, Outcome]) -> None:
    books = outcomes[name].books
    assert (books.failures, books.cut) == ([], [])


@pytest.mark.parametrize("name", UNNOTICED)
def test_an_outage_is_told_once_when_it_begins_and_once_when_it_is_over(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    for lines in outcomes[name].log.values():
        assert sum(SILENT in line for line in lines) <= 1, lines
        assert sum(BACK in line for line in lines) <= 1, lines
        assert len(lines) <= LINES, lines
