"""Each row of `narwhal cluster drill` once, on real processes, judged as the command judges it.

All rows that need the same share one cluster, as in the command itself. Bounds of time are those of
liveness: machines that run tests are busy.
"""

from __future__ import annotations

import asyncio

import pytest

from narwhal.cli.demo.extras import redis_server
from narwhal.cli.drill.report import row_document
from narwhal.cli.drill.rows import ROWS
from narwhal.cli.drill.run import Ears, Outcome, Plan, run_rows
from narwhal.cli.drill.stage import Setting
from narwhal.cli.drill.traffic import Load
from narwhal.cli.drill.verdict import broken
from narwhal.config.option_table import BY_KEY

SLACK_S = 30.0
LOAD = Load(rate=12.0, tokens=5, stream_s=0.5)
HERE = {name: row for name, row in ROWS.items() if not (row.needs.failsafe and "failsafe" not in BY_KEY)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    plan = Plan(Setting(redis_server(), interval_s=LOAD.stream_s / LOAD.tokens), LOAD, slack_s=SLACK_S)

    def take(outcome: Outcome) -> None:
        found[outcome.name] = outcome

    folder = tmp_path_factory.mktemp("rows")
    asyncio.run(run_rows(HERE, plan, folder=folder, ears=Ears(print, take)))
    for outcome in found.values():
        print(row_document(outcome, plan))
    return found


@pytest.mark.parametrize("name", HERE)
def test_row(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert list(broken(outcome, SLACK_S)) == []
    assert len(outcome.shots) == 1
    assert outcome.sent > 0 and outcome.probes > 0
    assert outcome.books.count("whole") > outcome.sent / 2


@pytest.mark.parametrize("name", [name for name, row in HERE.items() if row.goal_s is not None])
def test_another_router_owns_afterwards(name: str, outcomes: dict[str, Outcome]) -> None:
    (shot,) = outcomes[name].shots
    assert shot.epochs[0] < shot.epochs[1]
    assert shot.taken is not None
