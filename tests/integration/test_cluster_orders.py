"""Where the control key goes: to routers that the user or the lease record names, and nowhere else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from narwhal.cli.cluster.orders import hand_over
from narwhal.cli.cluster.target import CommandFailed, Target, target_of
from tests.support.redis import running
from tests.support.scripted import Line, Script, answer, scripted_engine

KEY = "opensesame-opensesame"


def target(*, router: str | None = None, redis_url: str | None = None) -> Target:
    options = argparse.Namespace(router=router, redis_url=redis_url, cluster="c", control_key_env="THE_KEY")
    return target_of(options, {"THE_KEY": KEY})


def standby(heads: list[str], owner: str) -> Script:
    async def script(line: Line) -> None:
        heads.append((await line.request())[0])
        body = {"error": "this router does not own the fleet: standby", "owner": {"url": owner}}
        await line.say(answer(503, json.dumps(body).encode()))

    return script


def owning(heads: list[str]) -> Script:
    async def script(line: Line) -> None:
        heads.append((await line.request())[0])
        await line.say(answer(200, b"{}"))

    return script


async def test_a_router_that_names_another_is_told_and_the_key_is_not_sent_there() -> None:
    asked: list[str] = []
    stolen: list[str] = []
    async with scripted_engine(owning(stolen)) as other:
        async with scripted_engine(standby(asked, other.spec.url)) as named:
            with pytest.raises(CommandFailed, match=f"pass --router {other.spec.url}"):
                await hand_over(target(router=named.spec.url), None)
    assert KEY in asked[0] and stolen == []


async def test_an_owner_that_changed_meanwhile_is_asked_where_the_record_says(tmp_path: Path) -> None:
    asked: list[str] = []
    stolen: list[str] = []
    ordered: list[str] = []
    lease = {"state": "held", "token": "0" * 32, "seq": 3, "epoch": 9, "ttl_ms": 5000, "owner": "a"}
    with running("redis-server", tmp_path) as redis, redis.client() as client:
        async with scripted_engine(owning(ordered)) as new, scripted_engine(owning(stolen)) as liar:

            async def changes(line: Line) -> None:
                client.hset("narwhal:{c}:lease", mapping={"url": new.spec.url, "owner": "b", "epoch": 10})
                await standby(asked, liar.spec.url)(line)

            async with scripted_engine(changes) as old:
                client.hset("narwhal:{c}:lease", mapping={**lease, "url": old.spec.url})
                store = f"redis://127.0.0.1:{redis.port}"
                assert (await hand_over(target(redis_url=store), None))[0] == new.spec.url
    assert KEY in asked[0] and KEY in ordered[0] and stolen == []
