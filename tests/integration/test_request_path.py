"""One request through router and engines over real sockets: legs, headers, sizing, faults, deadlines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from narwhal.model.engine import EngineProfile
from narwhal.model.placement import Resident
from narwhal.model.request import Outcome
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from narwhal.sim.settings import SimSettings
from tests.support.engines import QUICK, engines_here
from tests.support.serving import Rig, RouterOptions, router, specs
from tests.support.settings import engine_settings, fleet_config, serving_settings

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
DEFAULTS = RouterOptions()
TINY = replace(QUICK, model="tiny")
LIVENESS_S = 30.0
PROMPT = {"prompt": "Tell me of the sea", "stream": True, "max_tokens": 4}
CHAT_BODY = {
    "messages": [{"role": "user", "content": "Tell me of the sea"}],
    "stream": True,
    "max_tokens": 4,
}


@asynccontextmanager
async def fleet(
    roles: str = "pd",
    *,
    sim: SimSettings = TINY,
    options: RouterOptions = DEFAULTS,
    **sections: Any,
) -> AsyncIterator[tuple[Rig, Sequence[Stand]]]:
    async with engines_here(len(roles), sim) as stands:
        config = fleet_config(*specs(stands, roles=roles), **sections)
        async with router(config, options) as rig:
            yield rig, stands


def order(stand: Stand, fault: str, **fields: Any) -> None:
    stand.engine.order(parse_fault({"fault": fault, **fields}))


def legs(stand: Stand) -> dict[str, int]:
    return dict(stand.engine.stats.legs)


def seen(stand: Stand, leg: str) -> dict[str, Any]:
    """The last request of that leg as the engine got it."""
    document = next(seen for seen in reversed(stand.engine.stats.seen) if seen.leg == leg).document()
    return {**document, "json": json.loads(document["body"])}


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in data]


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIVENESS_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.005)


async def until_settled(rig: Rig, stands: Sequence[Stand]) -> None:
    """Every figure of router and engines is back at zero."""

    def settled() -> bool:
        resident = set(rig.fleet.resident().values()) == {Resident()}
        engines = all(not stand.engine.running and not stand.engine.waiting for stand in stands)
        return resident and engines and not rig.ledger.inflight and not rig.client.pool().busy

    await until(settled)
    rig.fleet.check_invariants()
    rig.totals.check_invariants()
    assert rig.totals.own.offered == len(rig.recorder.rows)
    for outcome, count in rig.recorder.counts.items():
        assert getattr(rig.totals.own, outcome.value) == count
    assert all(row.terminal == outcome.value for row, outcome in rig.recorder.rows)


# --- both legs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHAT, CHAT_BODY)])
async def test_a_stream_crosses_from_producer_to_consumer(path, body):
    async with fleet() as (rig, stands):
        response = await rig.http.post(path, json=body)
        told = events(response.text)
        await until_settled(rig, stands)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert told[-1] == "[DONE]"
    assert not any(event.get("usage") for event in told[:-1])
    assert [legs(stand) for stand in stands] == [{"tokenize": 1, "prefill": 1}, {"decode": 1}]
    assert seen(stands[0], "prefill")["json"]["max_tokens"] == 1
    assert seen(stands[1], "decode")["json"]["kv_transfer_params"]["do_remote_prefill"] is True
    row = rig.last
    assert (row.prefill_iid, row.decode_iid, row.crossed) == ("e0", "e1", True)
    assert (row.output_len, row.token_accounting, row.attempts) == (4, "usage", 1)
    assert row.input_len and row.ttft_s and row.first_byte_s and row.kv_wait_s
    assert row.rid == response.headers["x-request-id"]
    assert rig.recorder.rows[-1][1] is Outcome.SERVED


async def test_usage_is_told_to_a_client_that_asked():
    async with fleet() as (rig, _):
        body = {**PROMPT, "stream_options": {"include_usage": True}}
        told = events((await rig.http.post(COMPLETIONS, json=body)).text)
    assert told[-2]["usage"]["completion_tokens"] == 4


async def test_a_single_engine_serves_both_legs_without_a_handoff():
    async with fleet("p") as (rig, stands):
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert response.status_code == 200
    assert "kv_transfer_params" not in seen(stands[0], "decode")["json"]
    assert (rig.last.crossed, rig.last.prefill_iid, rig.last.decode_iid) == (False, "e0", "e0")


async def test_engines_get_fresh_ids_and_the_trace_but_nothing_of_the_client():
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {
        "authorization": "Bearer client-secret",
        "cookie": "session=1",
        "x-request-id": "client-77",
        "traceparent": trace,
        "x-narwhal-epoch": "tiny/9",
    }
    async with fleet() as (rig, stands):
        response = await rig.http.post(COMPLETIONS, json=PROMPT, headers=headers)
        calls = [seen(stands[0], "tokenize"), seen(stands[0], "prefill"), seen(stands[1], "decode")]
    rids = [call["headers"]["x-request-id"] for call in calls]
    assert len({*rids, "client-77", response.headers["x-request-id"]}) == 5
    assert rids[1:] == [rig.last.prefill_rid, rig.last.decode_rid]
    for call in calls:
        assert call["headers"]["traceparent"] == trace
        assert not {"authorization", "cookie", "x-narwhal-epoch"} & set(call["headers"])
    assert [call["headers"]["x-narwhal-leg"] for call in calls[1:]] == ["prefill", "decode"]
    assert rig.last.client_rid == "client-77"


async def test_a_malformed_traceparent_stays_here():
    async with fleet() as (rig, stands):
        await rig.http.post(COMPLETIONS, json=PROMPT, headers={"traceparent": "nonsense"})
        assert "traceparent" not in seen(stands[0], "prefill")["headers"]


# --- sizing --------------------------------------------------------------------------------------


async def test_token_ids_are_counted_without_asking_an_engine():
    async with fleet() as (rig, stands):
        await rig.http.post(COMPLETIONS, json={**PROMPT, "prompt": [1, 2, 3]})
        assert "tokenize" not in legs(stands[0])


@pytest.mark.parametrize("fault", [{"fault": "status", "status": 500}, {"fault": "hang"}])
async def test_a_count_that_does_not_come_fails_no_request(fault):
    sections = {"engine": engine_settings(tokenize_timeout_s=0.3)}
    async with fleet(**sections) as (rig, stands):
        stands[0].engine.order(parse_fault({**fault, "leg": "tokenize"}))
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert legs(stands[0])["tokenize"] == 1
    assert response.status_code == 200


async def test_without_tokenize_the_estimate_is_used():
    async with fleet(engine=engine_settings(tokenize=False)) as (rig, stands):
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert "tokenize" not in legs(stands[0])


# --- placement -----------------------------------------------------------------------------------


async def test_a_missed_target_is_counted_once_and_the_request_is_served():
    slow = {
        f"e{n}": EngineProfile(f"e{n}", 0.0, 10.0, 10.0, tpot_slope=1.0, tpot_intercept=1.0) for n in range(2)
    }
    async with fleet(options=RouterOptions(profiles=slow)) as (rig, stands):
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        await until_settled(rig, stands)
    assert (rig.totals.own.unserved, rig.totals.own.served) == (1, 1)


async def test_pins_that_forbid_a_leg_refuse_before_any_work():
    async with fleet("PP") as (rig, stands):
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert [legs(stand) for stand in stands] == [{}, {}]
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert error_of(response)["code"] == "no_schedulable_engines"
    assert rig.totals.own.rejected == 1


# --- faults before output ------------------------------------------------------------------------

LEG_FAULTS = [
    ("prefill", {"fault": "status", "status": 500}, 502),
    ("prefill", {"fault": "status", "status": 404}, 502),
    ("prefill", {"fault": "status", "status": 401}, 502),
    ("prefill", {"fault": "status", "status": 408}, 504),
    ("prefill", {"fault": "rst"}, 502),
    ("prefill", {"fault": "handoff", "variant": "missing"}, 502),
    ("prefill", {"fault": "handoff", "variant": "no_host"}, 502),
    ("prefill", {"fault": "hang"}, 504),
    ("decode", {"fault": "status", "status": 503}, 502),
    ("decode", {"fault": "rst"}, 502),
    ("decode", {"fault": "error_in_200"}, 502),
    ("decode", {"fault": "silent_first_token"}, 504),
    ("decode", {"fault": "hang"}, 504),
]


@pytest.mark.parametrize(("leg", "fault", "status"), LEG_FAULTS, ids=str)
async def test_a_fault_before_output_has_its_status_and_names_the_leg_only(leg, fault, status):
    sections = {
        "serving": serving_settings(prefill_timeout_s=0.5),
        "engine": engine_settings(first_token_timeout_s=0.5),
    }
    async with fleet(**sections) as (rig, stands):
        stands[leg == "decode"].engine.order(parse_fault({**fault, "leg": leg}))
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        for stand in stands:
            stand.engine.recover()
        await until_settled(rig, stands)
    assert response.status_code == status
    error = error_of(response)
    assert (error["type"], error["code"]) == (leg, leg)
    assert "127.0.0.1" not in response.text
    assert rig.totals.own.failed == 1
    row = rig.last
    assert (row.terminal, row.attempt_failures[0]["leg"]) == ("failed", leg)
    assert row.error.startswith(f"{leg} on e{int(leg == 'decode')}: ")


async def test_an_invalid_descriptor_never_reaches_an_engine():
    async with fleet() as (rig, stands):
        order(stands[0], "handoff", variant="null_blocks", leg="prefill")
        await rig.http.post(COMPLETIONS, json=PROMPT)
        assert legs(stands[1]) == {}


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_what_the_engine_says_of_the_request_is_passed_on(leg):
    async with fleet() as (rig, stands):
        message = "prompt too long (seen at 127.0.0.1:9)"
        order(stands[leg == "decode"], "status", status=400, message=message, leg=leg)
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        await until_settled(rig, stands)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "prompt too long (seen at (address))"
    assert rig.totals.own.invalid_requests == 1


async def test_an_overloaded_engine_is_told_with_its_wait():
    async with fleet() as (rig, stands):
        order(stands[0], "status", status=429, retry_after=7, leg="prefill")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert error_of(response)["type"] == "server_overloaded_error"
    assert rig.totals.own.failed == 1


async def test_an_engine_that_is_gone_is_a_bad_gateway():
    async with fleet() as (rig, stands):
        order(stands[0], "refuse")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert response.status_code == 502
    assert rig.last.reason == "EngineUnreachable"


# --- faults after output -------------------------------------------------------------------------


BREAKS = [{"fault": "close"}, {"fault": "no_done"}, {"fault": "abort", "after": 2}, {"fault": "stall"}]


@pytest.mark.parametrize("fault", BREAKS, ids=str)
async def test_a_stream_that_breaks_ends_with_one_error_event(fault):
    sections = {"engine": engine_settings(decode_read_timeout_s=0.3)}
    async with fleet(sim=replace(TINY, interval_s=0.03), **sections) as (rig, stands):
        stands[1].engine.order(parse_fault({**fault, "leg": "decode"}))
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        told = events(response.text)
        stands[1].engine.recover()
        await until_settled(rig, stands)
    assert response.status_code == 200
    assert told[0]["choices"]
    assert set(told[-1]["error"]) == {"message", "type", "param", "code"}
    assert "[DONE]" not in told
    assert "abort" not in response.text
    assert rig.totals.own.failed == 1


# --- attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_another_attempt_avoids_the_engines_of_the_failed_one(leg):
    async with fleet("ppdd", serving=serving_settings(max_attempts=2)) as (rig, stands):
        order(stands[2 if leg == "decode" else 0], "status", status=500, leg=leg)
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        await until_settled(rig, stands)
    assert response.status_code == 200
    row = rig.last
    assert (row.prefill_iid, row.attempts, len(row.attempt_failures)) == ("e1", 2, 1)
    assert row.decode_iid == ("e3" if leg == "decode" else "e2")


async def test_a_refusal_of_the_request_is_not_tried_again():
    async with fleet("ppdd", serving=serving_settings(max_attempts=3)) as (rig, stands):
        order(stands[0], "status", status=400, leg="prefill")
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 400
    assert rig.last.attempts == 1


async def test_nothing_is_tried_again_after_output():
    async with fleet("ppdd", serving=serving_settings(max_attempts=3)) as (rig, stands):
        order(stands[2], "close", leg="decode")
        assert "error" in events((await rig.http.post(COMPLETIONS, json=PROMPT)).text)[-1]
    assert rig.last.attempts == 1


# --- deadlines -----------------------------------------------------------------------------------


async def test_the_requests_own_deadline_is_no_fault_of_the_engine():
    serving = serving_settings(request_timeout_s=0.4, prefill_timeout_s=0.4)
    async with fleet(serving=serving) as (rig, stands):
        order(stands[0], "hang", leg="prefill")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        await until_settled(rig, stands)
    assert response.status_code == 504
    assert error_of(response)["type"] == "request_expired"
    assert rig.totals.own.expired == 1


async def test_a_stream_past_the_deadline_ends_with_an_error_event():
    async with fleet(serving=serving_settings(request_timeout_s=0.6)) as (rig, stands):
        order(stands[1], "stall", leg="decode")
        told = events((await rig.http.post(COMPLETIONS, json=PROMPT)).text)
        await until_settled(rig, stands)
    assert told[-1]["error"]["type"] == "request_expired"
    assert rig.totals.own.expired == 1


async def test_a_handoff_that_grew_too_old_is_never_sent():
    async with fleet(serving=serving_settings(handoff_timeout_s=0.0)) as (rig, stands):
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert legs(stands[1]) == {}
        await until_settled(rig, stands)
    assert response.status_code == 504
    assert error_of(response)["code"] == "handoff_expired"
    assert rig.totals.own.expired == 1


# --- admission -----------------------------------------------------------------------------------


async def test_over_the_limit_a_request_is_rejected_at_once():
    async with fleet(serving=serving_settings(max_connections=2)) as (rig, stands):
        order(stands[0], "hang", leg="prefill")
        held = [asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT)) for _ in range(2)]
        await until(lambda: rig.ledger.inflight == 2)
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        for task in held:
            task.cancel()
        await asyncio.wait(held)
        await until_settled(rig, stands)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert error_of(response)["type"] == "server_overloaded_error"
    assert (rig.totals.own.rejected, rig.totals.own.cancelled) == (1, 2)


# --- models --------------------------------------------------------------------------------------


async def test_the_model_list_has_the_served_model():
    async with fleet() as (rig, _):
        listed = (await rig.http.get("/v1/models")).json()
        rig.card.max_model_len = 512
        one = (await rig.http.get("/v1/models/tiny")).json()
        other = await rig.http.get("/v1/models/other/one")
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model == {
        "id": "tiny",
        "object": "model",
        "created": 1_800_000_000,
        "owned_by": "narwhal",
        "max_model_len": None,
    }
    assert one == {**model, "max_model_len": 512}
    assert other.status_code == 404
    assert error_of(other)["code"] == "model_not_found"


# --- whole answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHAT, CHAT_BODY)])
async def test_a_client_that_does_not_stream_gets_one_document(path, body):
    async with fleet() as (rig, stands):
        response = await rig.http.post(path, json={**body, "stream": False})
        await until_settled(rig, stands)
    document = response.json()
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) == len(response.content)
    assert document["usage"]["completion_tokens"] == 4
    assert document["choices"][0]["finish_reason"] == "length"
    assert seen(stands[1], "decode")["json"]["stream"] is True
    assert rig.last.first_byte_s >= rig.last.ttft_s
    assert rig.totals.own.served == 1


async def test_an_answer_over_the_limit_is_a_failure_of_the_leg():
    async with fleet(serving=serving_settings(max_response_bytes=2000)) as (rig, stands):
        body = {**PROMPT, "stream": False, "max_tokens": 1000}
        response = await rig.http.post(COMPLETIONS, json=body)
        await until_settled(rig, stands)
    assert response.status_code == 502
    assert error_of(response)["code"] == "decode"
    assert rig.totals.own.failed == 1


@pytest.mark.parametrize("fault", BREAKS, ids=str)
async def test_a_break_before_the_whole_answer_still_has_its_status(fault):
    async with fleet(engine=engine_settings(decode_read_timeout_s=0.3)) as (rig, stands):
        stands[1].engine.order(parse_fault({**fault, "leg": "decode"}))
        response = await rig.http.post(COMPLETIONS, json={**PROMPT, "stream": False})
        stands[1].engine.recover()
        await until_settled(rig, stands)
    assert response.status_code == (504 if fault["fault"] == "stall" else 502)
    assert error_of(response)["code"] == "decode"
    assert rig.last.output_len >= 1
