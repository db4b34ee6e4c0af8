"""Behind haproxy, with the shipped configuration: what clients see that never try again themselves.

200 requests a second, half of them streams of 2 s; a machine that is too slow for that gets a lower rate,
and the test prints what it was. RESTARTS (10 here) is 100 with `make drills`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from narwhal.cli.demo.extras import redis_server
from narwhal.cli.drill.report import row_document
from narwhal.cli.drill.rows import ROWS
from narwhal.cli.drill.run import Outcome, Plan, run_on
from narwhal.cli.drill.stage import Needs, Setting, staged
from narwhal.cli.drill.traffic import Load
from narwhal.cli.drill.verdict import broken
from tests.support.services import program

ROOT = Path(__file__).resolve().parents[2]
LOAD = Load(rate=200.0, tokens=8, stream_s=2.0)
SLACK_S = 30.0
RESTARTS = int(os.environ.get("DRILL_RESTARTS", "10"))


def behind_haproxy(folder: Path, *runs: tuple[str, int]) -> dict[str, Outcome]:
    """Each named row so many times, one after another on one cluster."""
    config = (ROOT / "configs" / "haproxy.cfg").read_text(encoding="utf-8")
    haproxy = (program("haproxy"), config)
    setting = Setting(redis_server(), haproxy=haproxy, interval_s=LOAD.stream_s / LOAD.tokens)

    async def drill() -> dict[str, Outcome]:
        found = {}
        async with staged(folder, setting, needs=Needs(own_store=True, warden=True)) as stage:
            for name, count in runs:
                plan = Plan(setting, LOAD, runs=count, slack_s=SLACK_S)
                found[name] = await run_on(stage, name, row=ROWS[name], plan=plan, say=print)
                print(row_document(found[name], plan))
        return found

    return asyncio.run(drill())


def test_nobody_behind_haproxy_notices_a_change_of_owner(tmp_path: Path) -> None:
    """A yield fails nothing; kill -9 cuts the killed router's own streams and nothing else."""
    found = behind_haproxy(tmp_path, ("yield", 2), ("kill", 2))
    for outcome in found.values():
        assert list(broken(outcome, SLACK_S)) == []
    assert (found["yield"].books.failures, found["yield"].books.cut) == ([], [])


def test_rolling_restarts_behind_haproxy_fail_no_request(tmp_path: Path) -> None:
    outcome = behind_haproxy(tmp_path, ("restart", RESTARTS))["restart"]
    assert list(broken(outcome, SLACK_S)) == []
    assert len(outcome.shots) == RESTARTS
    assert (outcome.books.failures, outcome.books.cut) == ([], [])
