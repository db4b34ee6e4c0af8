"""Five standbys want the lease at once: one gets it, soon, and nobody else believes to have it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from narwhal.cli.drill.rows import ROWS
from narwhal.cli.drill.run import Outcome, Plan, run_on
from narwhal.cli.drill.stage import Needs, Setting, staged
from narwhal.cli.drill.traffic import Load
from narwhal.cli.drill.verdict import broken
from tests.support.redis import binary, on

SLACK_S = 30.0
LOAD = Load(rate=10.0, tokens=4, stream_s=0.2)


def test_five_standbys_race_for_a_lease_that_was_given_back_and_for_one_that_was_not(tmp_path: Path) -> None:
    setting = Setting(binary(on("redis-server")), routers=6, interval_s=LOAD.stream_s / LOAD.tokens)

    async def drill() -> list[Outcome]:
        found = []
        async with staged(tmp_path, setting, needs=Needs(warden=True)) as stage:
            for name in ("kill", "host"):
                plan = Plan(setting, LOAD, slack_s=SLACK_S)
                found.append(await run_on(stage, name, row=ROWS[name], plan=plan, say=print))
        return found

    for outcome in asyncio.run(drill()):
        assert list(broken(outcome, SLACK_S)) == []
        assert len({yes.url for yes in outcome.yeses}) == 2, "the old owner and one successor"
        assert outcome.books.failures == []
