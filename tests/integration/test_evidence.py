"""What the request path says of engines, over real sockets: each leg and each failed count once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from math import inf
from typing import Any

import pytest
import uvloop

from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.model.evidence import CountFailed, Evidence, FailureClass, LegAnswered, LegFailed, LegSucceeded
from narwhal.sim.faults import parse_fault
from tests.integration.test_request_path import (
    COMPLETIONS,
    PROMPT,
    error_of,
    fleet,
    legs,
    order,
    until,
    until_settled,
)
from tests.support.engines import EngineProcess, engine_process
from tests.support.serving import RouterOptions, router
from tests.support.settings import engine_settings, fleet_config, serving_settings

P, D = Leg.PREFILL, Leg.DECODE
F = FailureClass
CHEAP = engine_settings(tokenize=False)
"""No token counts: only legs speak."""


async def said_after(
    fault: dict[str, Any], *, leg: str, roles: str = "pd", **sections: Any
) -> tuple[int, list[Evidence]]:
    """Status of a plain request whose leg's engine misbehaves once, and everything said meanwhile."""
    sections = {"engine": CHEAP, **sections}
    async with fleet(roles, **sections) as (rig, stands):
        stand = stands[0 if leg == "prefill" else len(roles) - 1]
        stand.engine.order(parse_fault({**fault, "leg": leg}))
        response = await rig.http.post(COMPLETIONS, json={**PROMPT, "stream": False})
        stand.engine.recover()
        await until_settled(rig, stands)
        return response.status_code, list(rig.heard.evidence)


async def test_legs_that_end_well_are_said_once_each():
    async with fleet(engine=CHEAP) as (rig, _):
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        prefill, decode = rig.heard.evidence
    assert isinstance(prefill, LegSucceeded)
    assert (prefill.iid, prefill.leg, prefill.peer) == ("e0", P, "")
    assert prefill.remote_engine_id, "the producer's own ID as its KV handoff names it"
    assert isinstance(decode, LegSucceeded)
    assert decode == LegSucceeded("e1", D, peer="e0", began=decode.began)
    assert decode.began < inf, "when it was dispatched is told of a decode"


async def test_a_decode_on_its_producer_crossed_nothing():
    async with fleet("p", engine=CHEAP) as (rig, _):
        await rig.http.post(COMPLETIONS, json=PROMPT)
        decode = rig.heard.evidence[1]
        assert isinstance(decode, LegSucceeded)
        assert (decode.iid, decode.leg, decode.peer) == ("e0", D, "")


async def test_a_count_that_came_says_nothing():
    async with fleet() as (rig, stands):
        await rig.http.post(COMPLETIONS, json=PROMPT)
        assert legs(stands[0])["tokenize"] == 1
        assert len(rig.heard.evidence) == 2


@pytest.mark.parametrize(
    ("fault", "failure", "way"),
    [
        ({"fault": "status", "status": 500}, F.INFERENCE_STATUS, "inference_status:500"),
        ({"fault": "status", "status": 429, "retry_after": 7}, F.OVERLOAD, "overload:429"),
        ({"fault": "status", "status": 408}, F.OVERLOAD, "overload:408"),
        ({"fault": "error_in_200"}, F.INFERENCE_STATUS, "inference_status:error_object"),
        ({"fault": "rst"}, F.CONNECTION, "connection:lost"),
    ],
    ids=lambda value: value.get("status", value["fault"]) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_failed_leg_is_said_with_its_class(fault, failure, way, leg):
    _, said = await said_after(fault, leg=leg)
    (failed,) = [one for one in said if isinstance(one, LegFailed)]
    assert (failed.iid, failed.leg.value) == ("e0" if leg == "prefill" else "e1", leg)
    assert (failed.failure, failed.way) == (failure, way)
    assert failed.peer == ("e0" if leg == "decode" else "")
    assert failed.retry_after_s == fault.get("retry_after")
    assert len(said) == (1 if leg == "prefill" else 2)


@pytest.mark.parametrize(
    ("fault", "leg", "failure", "way"),
    [
        ({"fault": "hang"}, "prefill", F.TIMEOUT, "timeout:read"),
        ({"fault": "silent_first_token"}, "decode", F.STREAM, "stream:first_token"),
        ({"fault": "stall", "after": 1}, "decode", F.STREAM, "stream:silence"),
        ({"fault": "no_done"}, "decode", F.STREAM, "stream:early_end"),
        ({"fault": "close"}, "decode", F.STREAM, "stream:early_end"),
        ({"fault": "abort"}, "decode", F.STREAM, "stream:bad_finish"),
        ({"fault": "abort"}, "prefill", F.STREAM, "stream:bad_finish"),
        ({"fault": "handoff", "variant": "missing"}, "prefill", F.KV_HANDOFF, "kv_handoff"),
    ],
    ids=lambda value: value["fault"] if isinstance(value, dict) else None,
)
async def test_so_are_timeouts_broken_streams_and_bad_handoffs(fault, leg, failure, way):
    limits = {
        "engine": engine_settings(tokenize=False, first_token_timeout_s=0.3, decode_read_timeout_s=0.3),
        "serving": serving_settings(prefill_timeout_s=0.3),
    }
    status, said = await said_after(fault, leg=leg, **limits)
    (failed,) = [one for one in said if isinstance(one, LegFailed)]
    assert (failed.failure, failed.way) == (failure, way)
    assert status == (504 if failed.way.split(":")[-1] in ("read", "first_token", "silence") else 502)


async def test_the_digest_is_that_of_the_clients_body_also_after_output():
    body = json.dumps({**PROMPT, "max_tokens": 8}).encode()
    async with fleet(engine=CHEAP) as (rig, stands):
        for fault in ("status", "close"):
            order(stands[1], fault, leg="decode", count=1, **({"status": 500} if fault == "status" else {}))
            await rig.http.post(COMPLETIONS, content=body)
        digests = {one.request for one in rig.heard.evidence if isinstance(one, LegFailed)}
    assert digests == {hashlib.blake2b(body, digest_size=16).digest()}


async def test_an_engine_that_is_gone_is_a_closed_door():
    async with fleet(engine=CHEAP) as (rig, stands):
        order(stands[1], "refuse")
        await rig.http.post(COMPLETIONS, json=PROMPT)
        failed = rig.heard.evidence[-1]
    assert isinstance(failed, LegFailed)
    assert (failed.failure, failed.way, failed.request) == (F.CONNECTION, "connection:connect", b"")


@pytest.mark.parametrize(("status", "told"), [(400, 400), (401, 502), (403, 502), (404, 502), (422, 422)])
async def test_a_4xx_is_an_answer(status, told):
    got, said = await said_after({"fault": "status", "status": status}, leg="prefill")
    digest = hashlib.blake2b(json.dumps({**PROMPT, "stream": False}).encode(), digest_size=16).digest()
    assert got == told
    (answered,) = said
    assert isinstance(answered, LegAnswered)
    assert (answered.iid, answered.leg, answered.status) == ("e0", P, status)
    assert len(answered.request) == len(digest)


async def test_a_count_without_an_answer_is_said_and_fails_no_request():
    body = json.dumps(PROMPT).encode()
    async with fleet(engine=engine_settings(tokenize_timeout_s=0.2)) as (rig, stands):
        order(stands[0], "hang", leg="tokenize")
        assert (await rig.http.post(COMPLETIONS, content=body)).status_code == 200
        failed, *well = rig.heard.evidence
    assert isinstance(failed, CountFailed)
    assert (failed.iid, failed.failure) == ("e0", F.TIMEOUT)
    assert failed.request == hashlib.blake2b(body, digest_size=16).digest()
    assert [type(one) for one in well] == [LegSucceeded, LegSucceeded]


async def test_a_door_that_is_closed_for_count_and_leg_is_said_once():
    async with fleet() as (rig, stands):
        order(stands[0], "refuse")
        await rig.http.post(COMPLETIONS, json=PROMPT)
        count, leg = rig.heard.evidence
    assert isinstance(count, CountFailed)
    assert isinstance(leg, LegFailed)
    assert (count.iid, count.failure, leg.iid, leg.failure, leg.again) == ("e0", F.CONNECTION) * 2 + (True,)


@pytest.mark.parametrize(
    "fault",
    [
        *({"fault": "status", "status": status} for status in (401, 404, 429, 500, 503)),
        {"fault": "error_in_200"},
        {"fault": "close"},
        {"fault": "rst"},
    ],
    ids=lambda fault: str(fault.get("status", fault["fault"])),
)
async def test_whatever_else_a_count_meets_says_nothing(fault):
    async with fleet() as (rig, stands):
        stands[0].engine.order(parse_fault({**fault, "leg": "tokenize"}))
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert [type(one) for one in rig.heard.evidence] == [LegSucceeded, LegSucceeded]


# --- what is never said ----------------------------------------------------------------------------


async def test_a_client_that_leaves_is_no_evidence():
    async with fleet(engine=CHEAP) as (rig, stands):
        order(stands[0], "hang", leg="prefill")
        client = asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT))
        await until(lambda: bool(rig.fleet.resident()["e0"].prefill))
        client.cancel()
        await asyncio.wait((client,))
        await until_settled(rig, stands)
        assert rig.heard.evidence == []


async def test_the_requests_own_deadline_is_no_evidence():
    serving = serving_settings(request_timeout_s=0.3, prefill_timeout_s=0.3)
    async with fleet(serving=serving, engine=engine_settings(tokenize=False, first_token_timeout_s=0.3)) as (
        rig,
        stands,
    ):
        for stand, leg in zip(stands, ("prefill", "decode"), strict=True):
            order(stand, "hang", leg=leg, count=1)
            response = await rig.http.post(COMPLETIONS, json=PROMPT)
            assert error_of(response)["type"] == "request_expired"
        assert [one for one in rig.heard.evidence if not isinstance(one, LegSucceeded)] == []


async def test_our_own_full_pool_is_no_evidence():
    """Two seats, both in use: the third request waits for one in vain."""
    async with fleet(
        engine=engine_settings(tokenize=False, pool_timeout_s=0.2),
        serving=serving_settings(max_connections=1, queue_capacity=1, queue_timeout_s=30.0),
    ) as (rig, stands):
        assert rig.client._seats.take_free()
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        rig.client._seats.give()
        assert (response.status_code, error_of(response)["code"]) == (504, "prefill")
        assert rig.heard.evidence == []
        await until_settled(rig, stands)


@pytest.mark.parametrize(
    ("fault", "leg", "way"),
    [("hang", "prefill", "timeout:read"), ("silent_first_token", "decode", "stream:first_token")],
)
async def test_an_engine_has_what_our_loop_missed_on_top_and_is_blamed_after_that(fault, leg, way):
    limits = engine_settings(tokenize=False, first_token_timeout_s=0.3)
    options = RouterOptions(stood_still_s=lambda within_s: 0.4)
    serving = serving_settings(prefill_timeout_s=0.3)
    async with fleet(engine=limits, serving=serving, options=options) as (rig, stands):
        order(stands[0 if leg == "prefill" else 1], fault, leg=leg, count=1)
        began = time.monotonic()
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 504
        assert time.monotonic() - began >= 0.7
        assert [one.way for one in rig.heard.of(LegFailed)] == [way]


async def test_but_the_requests_own_deadline_is_not_put_off():
    options = RouterOptions(stood_still_s=lambda within_s: 3600.0)
    serving = serving_settings(request_timeout_s=0.5, prefill_timeout_s=0.5)
    async with fleet(engine=CHEAP, serving=serving, options=options) as (rig, stands):
        order(stands[0], "hang", leg="prefill")
        async with asyncio.timeout(30.0):
            assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 504
        assert rig.heard.evidence == []


def test_an_answer_that_came_while_our_loop_stood_still_is_taken() -> None:
    """Its bytes lie in the socket when the loop runs again, long after the first token was due."""

    async def main(engines: EngineProcess) -> tuple[int, list[Evidence]]:
        specs = [
            EngineSpec(engine.name, engine.url, role=role)
            for engine, role in zip(engines.engines, (Role.PREFILL, Role.DECODE), strict=True)
        ]
        limits = engine_settings(tokenize=False, first_token_timeout_s=0.6)
        config = fleet_config(*specs, engine=limits, model="simulated")
        async with router(config, RouterOptions()) as rig:
            asked = asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT))
            await until(lambda: bool(rig.fleet.resident()["e1"].decode) and rig.client.pool().busy == 1)
            await asyncio.sleep(0.02)
            asyncio.get_running_loop().call_soon(time.sleep, 1.4)
            return (await asked).status_code, list(rig.heard.evidence)

    with engine_process(2) as engines:
        engines.engines[1].order("slow_first_token", leg="decode", seconds=0.3)
        status, said = uvloop.run(main(engines))
    assert status == 200
    assert [type(one) for one in said] == [LegSucceeded, LegSucceeded]
