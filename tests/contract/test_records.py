"""What commands read straight from a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from narwhal.errors import StoreProtocolError
from narwhal.runtime.records import RecordReader
from tests.support.redis import RedisServer

R = TypeVar("R")


@pytest.fixture
def empty(server: RedisServer) -> RedisServer:
    with server.client() as client:
        client.flushall()
    return server


def read(server: RedisServer, ask: Callable[[RecordReader], Awaitable[R]], *, scan_calls: int = 1000) -> R:
    async def script() -> R:
        reader = RecordReader(server.open_address, "", scan_calls=scan_calls)
        try:
            return await ask(reader)
        finally:
            await reader.aclose()

    return asyncio.run(script())


def test_a_look_for_clusters_that_comes_to_no_end_is_told_and_no_short_list(empty: RedisServer) -> None:
    with empty.client() as client:
        client.mset({f"other:{n}": "" for n in range(5000)})
        client.hset("narwhal:{one}:lease", "state", "vacant")
    with pytest.raises(StoreProtocolError, match="too many keys"):
        read(empty, lambda reader: reader.clusters(), scan_calls=1)
    assert read(empty, lambda reader: reader.clusters()) == ("one",)


def test_totals_of_a_newer_version_are_read_without_what_is_unknown(empty: RedisServer) -> None:
    with empty.client() as client:
        client.hset("narwhal:{one}:totals", "run-1", '{"served":3,"dreamt":9}')
    records = read(empty, lambda reader: reader.read("one"))
    assert records.totals["run-1"].served == 3


def test_totals_of_a_run_that_cannot_be_read_are_left_out(empty: RedisServer) -> None:
    with empty.client() as client:
        client.hset("narwhal:{one}:totals", mapping={"run-1": "scrawl", "run-2": '{"served":3}'})
    totals = read(empty, lambda reader: reader.read("one")).totals
    assert {run: counters.served for run, counters in totals.items()} == {"run-2": 3}
