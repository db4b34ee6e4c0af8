"""Where the control key goes: to routers that the user or the lease record names, and nowhere else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from narwhal.cli.asking import CommandFailed, followed
from narwhal.cli.cluster.orders import hand_over
from narwhal.cli.cluster.target import Target, target_of
from tests.support.lifecycle import cluster_document
from tests.support.redis import on, running
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
        await line.say(answer(200, json.dumps(cluster_document()).encode()))

    return script


async def test_the_owner_that_a_router_names_is_asked_in_its_place() -> None:
    asked: list[str] = []
    ordered: list[str] = []
    async with scripted_engine(owning(ordered)) as other:
        async with scripted_engine(standby(asked, other.spec.url)) as named:
            assert (await hand_over(target(router=named.spec.url), None))[0] == other.spec.url
    assert KEY in asked[0] and KEY in ordered[0]


async def test_two_that_name_each_other_are_left_after_a_few_turns() -> None:
    asked: list[str] = []
    async with scripted_engine(standby(asked, "http://127.0.0.1:1")) as named:
        with pytest.raises(CommandFailed, match="gives no answer"):
            await hand_over(target(router=named.spec.url), None)

        async def turns(line: Line) -> None:
            await standby(asked, f"{first.spec.url}/" if len(asked) % 2 else first.spec.url)(line)

        async with scripted_engine(turns) as first:
            with pytest.raises(CommandFailed, match=r"refused \(503\): this router does not own"):
                await hand_over(target(router=first.spec.url), None)
    assert len(asked) < 8


@pytest.mark.parametrize(
    ("owner", "why"),
    [
        ("http://b:8001", "which is not encrypted"),
        ("https://u:p@b:8001", "no usable URL"),
        ("", "not encrypted"),
    ],
)
def test_the_key_follows_no_owner_out_of_tls_nor_to_what_is_no_url(owner: str, why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        followed("https://a:8001", owner)


async def test_an_owner_that_changed_meanwhile_is_asked_where_the_record_says(tmp_path: Path) -> None:
    asked: list[str] = []
    stolen: list[str] = []
    ordered: list[str] = []
    lease = {"state": "held", "token": "0" * 32, "seq": 3, "epoch": 9, "ttl_ms": 5000, "owner": "a"}
    with running(on("redis-server"), tmp_path) as redis, redis.client() as client:
        async with scripted_engine(owning(ordered)) as new, scripted_engine(owning(stolen)) as liar:

            async def changes(line: Line) -> None:
                client.hset("narwhal:{c}:lease", mapping={"url": new.spec.url, "owner": "b", "epoch": 10})
                await standby(asked, liar.spec.url)(line)

            async with scripted_engine(changes) as old:
                client.hset("narwhal:{c}:lease", mapping={**lease, "url": old.spec.url})
                store = f"redis://127.0.0.1:{redis.port}"
                assert (await hand_over(target(redis_url=store), None))[0] == new.spec.url
    assert KEY in asked[0] and KEY in ordered[0] and stolen == []
