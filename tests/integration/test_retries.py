"""Further attempts over real sockets: what is tried again, on whom, with what, for how much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from narwhal.clock import SystemClock
from narwhal.cluster.local import LocalGate
from narwhal.model.engine import Leg
from narwhal.model.evidence import LegFailed, LegSucceeded
from narwhal.model.placement import Demand
from narwhal.model.request import Outcome
from narwhal.model.settings import ServingSettings
from narwhal.sim.faults import parse_fault
from narwhal.sim.rack import Stand
from tests.integration.test_request_path import (
    COMPLETIONS,
    PROMPT,
    error_of,
    events,
    fleet,
    legs,
    order,
    until,
    until_settled,
)
from tests.support.serving import RouterOptions
from tests.support.settings import engine_settings, recovery_settings, serving_settings

QUICK = engine_settings(tokenize=False, first_token_timeout_s=0.3, connect_timeout_s=1.0)
WHOLE = {**PROMPT, "stream": False}


def tries(count: int = 2, **changes: Any) -> ServingSettings:
    values = {"max_attempts": count, "prefill_timeout_s": 0.3}
    return serving_settings(**{**values, **changes})


def dispatched(stands: Sequence[Stand], leg: str) -> list[int]:
    """How many requests of a leg each engine has seen."""
    return [stand.engine.stats.legs.get(leg, 0) for stand in stands]


def seen(stands: Sequence[Stand], leg: str) -> list[dict[str, Any]]:
    return [one.document() for stand in stands for one in stand.engine.stats.seen if one.leg == leg]


# --- what is tried again ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "status", "status": 500},
        {"fault": "status", "status": 503},
        {"fault": "status", "status": 408},
        {"fault": "status", "status": 429},
        {"fault": "error_in_200"},
        {"fault": "rst"},
        {"fault": "abort", "after": 0},
        {"fault": "hang"},
    ],
    ids=lambda fault: str(fault.get("status", fault["fault"])),
)
@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_failure_before_output_is_hidden_from_the_client(fault, leg):
    async with fleet("ppdd", serving=tries(), engine=QUICK) as (rig, stands):
        stands[0 if leg == "prefill" else 2].engine.order(parse_fault({**fault, "leg": leg, "count": 1}))
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert response.status_code == 200
        assert events(response.text)[-1] == "[DONE]"
        await until_settled(rig, stands)
    row = rig.last
    assert (row.attempts, row.terminal, len(row.attempt_failures)) == (2, "served", 1)
    assert (row.attempt_failures[0]["leg"], rig.ledger.attempts, rig.ledger.retries) == (leg, 2, 1)
    assert rig.recorder.counts[Outcome.SERVED] == 1


@pytest.mark.parametrize(
    ("fault", "leg"),
    [
        ({"fault": "silent_first_token"}, "decode"),
        ({"fault": "no_done", "after": 0}, "decode"),
        ({"fault": "handoff", "variant": "missing"}, "prefill"),
        ({"fault": "handoff", "variant": "unknown_engine"}, "prefill"),
        ({"fault": "close", "after": 0}, "prefill"),
    ],
    ids=lambda value: value.get("variant", value["fault"]) if isinstance(value, dict) else value,
)
async def test_so_is_a_bad_handoff_and_an_early_end(fault, leg):
    async with fleet("ppdd", serving=tries(), engine=QUICK) as (rig, stands):
        stands[0 if leg == "prefill" else 2].engine.order(parse_fault({**fault, "leg": leg, "count": 1}))
        response = await rig.http.post(COMPLETIONS, json=WHOLE)
        assert response.status_code == 200, response.text
    assert (rig.last.attempts, rig.last.terminal) == (2, "served")


async def test_an_engine_that_is_gone_is_got_round():
    async with fleet("ppdd", serving=tries(), engine=QUICK) as (rig, stands):
        order(stands[2], "refuse")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert response.status_code == 200
    assert rig.last.attempt_failures[0]["class"] == "connection"


async def test_a_whole_answer_that_breaks_off_late_is_still_before_visible_output():
    """The client of a plain answer has seen nothing yet."""
    async with fleet("ppdd", serving=tries(), engine=QUICK) as (rig, stands):
        order(stands[2], "close", leg="decode", after=2, count=1)
        response = await rig.http.post(COMPLETIONS, json=WHOLE)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 4
    assert rig.last.output_len == 4


# --- what is not -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_any_other_4xx_is_not_tried_again(status):
    async with fleet("ppdd", serving=tries(3), engine=QUICK) as (rig, stands):
        order(stands[0], "status", status=status, leg="prefill")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert dispatched(stands, "prefill") == [1, 0, 0, 0]
    assert response.status_code == (status if status in (400, 413, 422) else 502)
    assert (rig.last.attempts, rig.retries.credits) == (1, 10.0)


async def test_our_own_full_pool_is_not_tried_again():
    limits = engine_settings(tokenize=False, pool_timeout_s=0.1)
    async with fleet("ppdd", serving=tries(3, max_connections=1), engine=limits) as (rig, stands):
        assert rig.client._seats.take_free()
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        rig.client._seats.give()
        await until_settled(rig, stands)
    assert (response.status_code, rig.last.attempts) == (504, 1)


async def test_nothing_is_tried_again_for_a_client_that_left():
    async with fleet("ppdd", serving=tries(3), engine=QUICK) as (rig, stands):
        for stand in stands[:2]:
            order(stand, "slow", seconds=0.2, leg="prefill")
        client = asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT))
        await until(lambda: sum(dispatched(stands, "prefill")) == 1)
        client.cancel()
        await asyncio.wait((client,))
        await until_settled(rig, stands)
        assert sum(dispatched(stands, "prefill")) == 1
    assert (rig.last.terminal, rig.last.attempts) == ("cancelled", 1)


async def test_suspected_poison_is_not_tried_again_and_has_the_engines_status():
    async with fleet("ppdd", serving=tries(3), engine=QUICK) as (rig, stands):
        rig.heard.suspects = {"inference_status:503"}
        order(stands[0], "status", status=503, leg="prefill")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert (response.status_code, error_of(response)["code"]) == (503, "prefill")
    assert "retry-after" not in response.headers
    assert (rig.last.attempts, rig.last.terminal, rig.last.reason) == (1, "failed", "SuspectedPoison")


async def test_the_fleet_suspects_a_request_that_two_engines_fail_alike_and_charges_neither():
    options = RouterOptions(judged=True)
    sections = {"recovery": recovery_settings(eject_after=1), "engine": QUICK, "serving": tries(3)}
    async with fleet("pppd", options=options, **sections) as (rig, stands):
        for stand in stands[:3]:
            order(stand, "status", status=500, leg="prefill")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert (response.status_code, error_of(response)["code"]) == (500, "prefill")
        assert (rig.last.attempts, sum(dispatched(stands, "prefill"))) == (2, 2)
        assert rig.fleet.standing(SystemClock().now()).failures == {}
        again = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert (again.status_code, rig.last.attempts) == (500, 1), "it is known by now"
        other = await rig.http.post(COMPLETIONS, json={**PROMPT, "prompt": "another one"})
        assert (other.status_code, rig.last.attempts) == (500, 2), "two more failed alike"


async def test_a_quarantined_engine_is_left_out_of_the_next_attempt_and_request():
    options = RouterOptions(judged=True)
    sections = {"recovery": recovery_settings(failure_quarantine_s=60.0), "engine": QUICK, "serving": tries()}
    async with fleet("ppd", options=options, **sections) as (rig, stands):
        order(stands[0], "status", status=500, leg="prefill", count=1)
        for _ in range(4):
            assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert dispatched(stands, "prefill") == [1, 4, 0]


async def test_poison_without_a_status_is_502():
    async with fleet("ppdd", serving=tries(3), engine=QUICK) as (rig, stands):
        rig.heard.suspects = {"stream:first_token"}
        order(stands[2], "silent_first_token", leg="decode")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert (response.status_code, error_of(response)["code"]) == (502, "decode")
    assert rig.last.attempts == 1


# --- with what and on whom -------------------------------------------------------------------------


async def test_every_attempt_has_fresh_request_ids_and_a_fresh_handoff():
    async with fleet("ppdd", serving=tries(3), engine=QUICK) as (rig, stands):
        for stand in stands[2:]:
            order(stand, "status", status=500, leg="decode", count=1)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        prefills, decodes = seen(stands, "prefill"), seen(stands, "decode")
    assert (len(prefills), len(decodes), rig.last.attempts) == (3, 3, 3)
    rids = [one["headers"]["x-request-id"] for one in (*prefills, *decodes)]
    assert len(set(rids)) == 6
    handoffs = {one["body"].split('"remote_request_id":')[1][:40] for one in decodes}
    assert len(handoffs) == 3


async def test_the_engine_whose_leg_failed_is_avoided_until_no_other_is_left():
    async with fleet("ppd", serving=tries(3), engine=QUICK) as (rig, stands):
        for stand in stands[:2]:
            order(stand, "status", status=500, leg="prefill", count=1)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert sorted(dispatched(stands, "prefill")) == [0, 1, 2]
    failed = [failure["iid"] for failure in rig.last.attempt_failures]
    assert sorted(failed) == ["e0", "e1"], "one after the other, and the first one again at last"


async def test_a_failed_decode_avoids_its_producer_too():
    async with fleet("ppdd", serving=tries(), engine=QUICK) as (rig, stands):
        order(stands[2], "status", status=500, leg="decode")
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert (dispatched(stands, "prefill")[:2], dispatched(stands, "decode")[2:]) == ([1, 1], [1, 1])


async def test_the_only_engines_are_used_again():
    async with fleet("pd", serving=tries(), engine=QUICK) as (rig, stands):
        order(stands[1], "status", status=500, leg="decode", count=1)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
        assert (legs(stands[0]), legs(stands[1])) == ({"prefill": 2}, {"decode": 2})


async def test_a_handoff_that_grew_too_old_is_followed_by_a_fresh_prefill():
    """The only seat is taken between the legs, for longer than the handoff is good."""
    serving = tries(2, handoff_timeout_s=0.15, max_connections=1, prefill_timeout_s=30.0)
    async with fleet("pdd", serving=serving, engine=engine_settings(tokenize=False)) as (rig, stands):
        # e2 has work, so that e1 is the better one; it is not avoided, for no leg of it has failed.
        rig.fleet.reserve_decode(Demand(100_000), 0.0, producer="e0", avoid={"e1"})
        order(stands[0], "slow", leg="prefill", seconds=0.3, count=1)
        asked = asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT))
        await until(lambda: rig.client.pool().busy == 1)
        seat = asyncio.create_task(rig.client._seats.wait(30.0))
        await seat
        await asyncio.sleep(0.3)
        rig.client._seats.give()
        assert (await asked).status_code == 200
        assert (dispatched(stands, "prefill"), dispatched(stands, "decode")) == ([2, 0, 0], [0, 1, 0])
    assert [(failure["class"], failure["kind"]) for failure in rig.last.attempt_failures] == [
        ("none", "HandoffExpired")
    ]
    assert rig.heard.of(LegFailed) == [], "nobody's fault"


# --- when, for how much, and who may ---------------------------------------------------------------


async def test_the_pause_before_it_is_drawn():
    drawn: list[float] = []

    def draw() -> float:
        drawn.append(0.5)
        return 0.5

    serving = tries(3, retry_base_s=0.2, retry_cap_s=0.2)
    async with fleet("pd", serving=serving, engine=QUICK, options=RouterOptions(draw=draw)) as (rig, stands):
        order(stands[0], "status", status=500, leg="prefill")
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 502
    assert rig.last.attempts == 3
    assert rig.last.duration_s >= 0.2, "twice half of the bound"
    assert len(drawn) >= 2


async def test_no_pause_reaches_the_deadline():
    """What failed is the answer, at once: waiting would only end in `request_expired`."""
    serving = tries(3, retry_base_s=60.0, retry_cap_s=60.0, request_timeout_s=20.0, prefill_timeout_s=20.0)
    options = RouterOptions(draw=lambda: 0.9)
    async with fleet("pd", serving=serving, engine=QUICK, options=options) as (rig, stands):
        order(stands[0], "status", status=500, leg="prefill")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert (response.status_code, rig.last.attempts, rig.retries.credits) == (502, 1, 10.0)


async def test_without_credit_there_is_no_retry_and_successes_bring_it_back():
    async with fleet("pd", serving=tries(2, retry_budget=1.0, retry_replenish=0.5), engine=QUICK) as (
        rig,
        stands,
    ):
        order(stands[0], "status", status=500, leg="prefill", count=3)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 502
        assert (rig.last.attempts, rig.retries.credits) == (2, 0.0)
        assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 502
        assert rig.last.attempts == 1
        for credits in (0.5, 1.0, 1.0):
            assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
            assert rig.retries.credits == credits


async def test_control_is_asked_before_each_new_attempt():
    gate = LocalGate()

    def lose() -> float:
        gate.shutting_down = True
        return 0.0

    options = RouterOptions(gate=gate, draw=lose)
    async with fleet("ppdd", serving=tries(), engine=QUICK, options=options) as (rig, stands):
        order(stands[0], "status", status=500, leg="prefill")
        response = await rig.http.post(COMPLETIONS, json=PROMPT)
        assert (response.status_code, error_of(response)["code"]) == (503, "standby")
        assert dispatched(stands, "prefill") == [1, 0, 0, 0]
    assert (rig.last.attempts, rig.last.terminal) == (1, "failed")


# --- the last attempt's answer ---------------------------------------------------------------------


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("fault", "status", "kind", "retry_after"),
    [
        ({"fault": "status", "status": 429, "retry_after": 7}, 429, "server_overloaded_error", "7"),
        ({"fault": "status", "status": 429}, 429, "server_overloaded_error", "1"),
        ({"fault": "status", "status": 408}, 504, "", None),
        ({"fault": "status", "status": 500}, 502, "", None),
        ({"fault": "status", "status": 503}, 502, "", None),
        ({"fault": "status", "status": 401}, 502, "", None),
        ({"fault": "status", "status": 403}, 502, "", None),
        ({"fault": "status", "status": 404}, 502, "", None),
        ({"fault": "error_in_200"}, 502, "", None),
        ({"fault": "rst"}, 502, "", None),
        ({"fault": "hang"}, 504, "", None),
    ],
    ids=lambda value: str(value.get("status", value["fault"])) if isinstance(value, dict) else None,
)
async def test_the_rows_of_the_error_table(leg, fault, status, kind, retry_after):
    async with fleet("pd", serving=tries(), engine=QUICK) as (rig, stands):
        stands[0 if leg == "prefill" else 1].engine.order(parse_fault({**fault, "leg": leg}))
        response: httpx.Response = await rig.http.post(COMPLETIONS, json=PROMPT)
        await until_settled(rig, stands)
    assert response.status_code == status, response.text
    error = error_of(response)
    assert (error["type"], error["code"]) == ((kind, None) if kind else (leg, leg))
    assert response.headers.get("retry-after") == retry_after
    assert rig.totals.own.failed == 1
    tried_again = fault.get("status") not in (401, 403, 404)
    assert rig.last.attempts == (2 if tried_again else 1)
    assert len(rig.heard.of(LegFailed)) == (2 if tried_again else 0), "each leg once"


async def test_each_leg_of_each_attempt_is_said_once():
    async with fleet("ppdd", serving=tries(), engine=QUICK) as (rig, stands):
        order(stands[2], "status", status=500, leg="decode")
        await rig.http.post(COMPLETIONS, json=PROMPT)
    assert [type(one) for one in rig.heard.evidence] == [LegSucceeded, LegFailed, LegSucceeded, LegSucceeded]
    assert [one.leg for one in rig.heard.of(LegSucceeded)] == [Leg.PREFILL, Leg.PREFILL, Leg.DECODE]
