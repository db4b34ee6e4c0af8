"""KV that a producer holds, over real sockets: from its prefill's end to the first token of the decode."""

from __future__ import annotations

import asyncio

import pytest

from narwhal.clock import SystemClock
from narwhal.model.pair_view import HeldKv
from tests.integration.test_request_path import COMPLETIONS, PROMPT, fleet, order, until
from tests.support.serving import Rig
from tests.support.settings import engine_settings, serving_settings

PATIENT = engine_settings(tokenize=False, first_token_timeout_s=30.0)
LEASE_S = 30.0


def held(rig: Rig, producer: int = 0) -> HeldKv:
    return list(rig.fleet.kv(SystemClock().now()).values())[producer]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_held_until_the_first_token_of_its_decode(stream):
    async with fleet("pd", engine=PATIENT) as (rig, stands):
        order(stands[1], "slow_first_token", leg="decode", seconds=0.3, count=1)
        order(stands[1], "stall", leg="decode", after=1, seconds=0.3, count=1)
        body = {**PROMPT, "stream": stream}
        asked = asyncio.ensure_future(rig.http.post(COMPLETIONS, json=body))
        await until(lambda: held(rig).handoffs == 1)
        assert held(rig).tokens > 0
        assert rig.fleet.resident()["e0"].prefill == 0
        await until(lambda: held(rig).handoffs == 0)
        assert not asked.done(), "its first token is enough"
        assert (await asked).status_code == 200
    assert held(rig) == HeldKv(0, 0, 0)


async def test_a_decode_that_never_began_leaves_it_held_and_orphaned():
    async with fleet("pd", engine=PATIENT) as (rig, stands):
        order(stands[1], "status", leg="decode", status=500, count=1)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 502
        assert held(rig).handoffs == 1
        now = SystemClock().now()
        rig.fleet.tick(now + LEASE_S - 1)
        assert held(rig).handoffs == 1
        rig.fleet.tick(now + LEASE_S)
        assert held(rig) == HeldKv(0, 0, 1)


async def test_a_client_that_leaves_before_the_first_token_leaves_it_held():
    async with fleet("pd", engine=PATIENT) as (rig, stands):
        order(stands[1], "silent_first_token", leg="decode", count=1)
        asked = asyncio.ensure_future(rig.http.post(COMPLETIONS, json=PROMPT))
        await until(lambda: held(rig).handoffs == 1 and rig.fleet.resident()["e1"].decode == 1)
        asked.cancel()
        await until(lambda: rig.ledger.inflight == 0)
        assert held(rig).handoffs == 1


async def test_an_engine_that_refuses_the_request_has_given_the_blocks_up():
    async with fleet("pd", engine=PATIENT) as (rig, stands):
        order(stands[1], "status", leg="decode", status=400, count=1)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 400
        assert held(rig).handoffs == 0


async def test_a_decode_on_the_producer_itself_pulls_nothing():
    async with fleet("p", engine=PATIENT) as (rig, _):
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert held(rig).handoffs == 1


async def test_each_attempt_holds_its_own():
    async with fleet("pd", engine=PATIENT, serving=serving_settings(max_attempts=2)) as (rig, stands):
        order(stands[1], "status", leg="decode", status=503, count=1)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert held(rig).handoffs == 1, "that of the attempt that failed"
