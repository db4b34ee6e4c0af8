"""Behind haproxy, with the shipped configuration: what clients see that never try again themselves.

200 requests a second, half of them streams of 2 s; a machine that is too slow for that gets a lower rate,
and the test prints what it was. RESTARTS (4 here) is 100 with `make drills`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from narwhal.cli.drill.report import row_document
from narwhal.cli.drill.rows import ROWS
from narwhal.cli.drill.run import Outcome, Plan, run_on
from narwhal.cli.drill.stage import Needs, Setting, staged
from narwhal.cli.drill.traffic import Load
from narwhal.cli.drill.verdict import broken
from tests.support.redis import binary, on
from tests.support.services import program

ROOT = Path(__file__).resolve().parents[2]
LOAD = Load(rate=200.0, tokens=8, stream_s=2.0)
SLACK_S = 30.0
RESTARTS = int(os.environ.get("DRILL_RESTARTS", "4"))


def behind_haproxy(folder: Path, *runs: tuple[str, int]) -> dict[str, Outcome]:
    """Each named row so many times, one after another on one cluster."""
    config = (ROOT / "configs" / "haproxy.cfg").read_text(encoding="utf-8")
    haproxy = (program("haproxy"), config)
    setting = Setting(binary(on("valkey")), haproxy=haproxy, interval_s=LOAD.stream_s / LOAD.tokens)

    async def drill() -> dict[str, Outcome]:
        found = {}
        async with staged(folder, setting, needs=Needs(own_store=True, warden=True)) as stage:
            for name, count in runs:
                plan = Plan(setting, LOAD, runs=count, slack_s=SLACK_S)
                found[name] = await run_on(stage, name, row=ROWS[name], plan=plan, say=print)
                print(row_document(found[name], plan))
        return found

    return asyncio.run(drill())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("balancer")
    return behind_haproxy(folder, ("yield", 1), ("kill", 1), ("restart", RESTARTS))


@pytest.mark.parametrize("name", ["yield", "kill", "restart"])
def test_every_promise_holds_under_load(name: str, found: dict[str, Outcome]) -> None:
    assert list(broken(found[name], SLACK_S)) == []


@pytest.mark.parametrize("name", ["yield", "restart"])
def test_clients_behind_haproxy_do_not_notice_a_clean_change(name: str, found: dict[str, Outcome]) -> None:
    assert (found[name].books.failures, found[name].books.cut) == ([], [])
    assert found[name].books.count("whole") == found[name].sent


def test_a_killed_router_cuts_its_own_streams_and_fails_nothing_else(found: dict[str, Outcome]) -> None:
    outcome = found["kill"]
    (shot,) = outcome.shots
    assert outcome.books.cut, "it had streams under way"
    assert outcome.books.failures == []
    assert all(one.began < shot.at + 0.1 for one in outcome.books.cut)
    late = [one for one in outcome.books.endings if one.began > shot.over]
    assert late and {one.how for one in late} == {"whole"}


def test_rolling_restarts_came_to_their_end(found: dict[str, Outcome]) -> None:
    assert len(found["restart"].shots) == RESTARTS
