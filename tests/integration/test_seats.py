"""Legs that wait for a seat at an engine: `serving.prefill_concurrency` and `decode_concurrency`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from narwhal.cluster.local import LocalGate
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.model.request import Outcome
from narwhal.sim.rack import Stand
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
from tests.support.serving import Rig, RouterOptions
from tests.support.settings import engine_settings, serving_settings

NO_TOKENS = engine_settings(tokenize=False, first_token_timeout_s=60.0)


def seats(prefill: int = 0, decode: int = 0, **more: Any) -> dict[str, Any]:
    settings = serving_settings(prefill_concurrency=prefill, decode_concurrency=decode, **more)
    return {"serving": settings, "engine": NO_TOKENS}


def asking(rig: Rig, count: int = 1) -> list[asyncio.Task[httpx.Response]]:
    return [asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT, timeout=60.0)) for _ in range(count)]


def hang(stand: Stand, leg: str) -> None:
    order(stand, "hang", leg=leg)


def let_go(stand: Stand) -> None:
    stand.engine.faults.clear()


@pytest.mark.parametrize(("prefill", "decode"), [(1, 0), (0, 1), (2, 2)])
async def test_no_engine_has_more_legs_than_it_may_and_everybody_is_served(prefill: int, decode: int) -> None:
    most = {Leg.PREFILL: 0, Leg.DECODE: 0}

    async with fleet("ppdd", **seats(prefill, decode)) as (rig, stands):

        async def watch() -> None:
            while True:
                for resident in rig.fleet.resident().values():
                    most[Leg.PREFILL] = max(most[Leg.PREFILL], resident.prefill)
                    most[Leg.DECODE] = max(most[Leg.DECODE], resident.decode)
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        answers = await asyncio.gather(*asking(rig, 24))
        watcher.cancel()
        await until_settled(rig, stands)
    assert {answer.status_code for answer in answers} == {200}
    assert rig.totals.own.served == 24
    for leg, limit in ((Leg.PREFILL, prefill), (Leg.DECODE, decode)):
        assert 0 < most[leg] <= (limit or 24)


@pytest.mark.parametrize(("leg", "number"), [("prefill", 0), ("decode", 1)])
async def test_who_came_first_is_placed_first(leg: str, number: int) -> None:
    async with fleet("pd", **seats(1, 1)) as (rig, stands):
        hang(stands[number], leg)
        (first,) = asking(rig)
        await until(lambda: legs(stands[number]).get(leg) == 1)
        waiting = []
        for count in range(1, 4):
            waiting += asking(rig)
            await until(lambda count=count: rig.waiting(leg) == count)
        let_go(stands[number])
        first.cancel()
        done: list[int] = []
        for index, task in enumerate(waiting):
            task.add_done_callback(lambda _, index=index: done.append(index))
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
        await until_settled(rig, stands)
    assert done == [0, 1, 2]


@pytest.mark.parametrize(("leg", "number"), [("prefill", 0), ("decode", 1)])
async def test_a_client_that_leaves_the_line_costs_no_seat(leg: str, number: int) -> None:
    async with fleet("pd", **seats(1, 1)) as (rig, stands):
        hang(stands[number], leg)
        (first,) = asking(rig)
        await until(lambda: legs(stands[number]).get(leg) == 1)
        left, stays = asking(rig, 2)
        await until(lambda: rig.waiting(leg) == 2)
        left.cancel()
        await until(lambda: rig.waiting(leg) == 1)
        let_go(stands[number])
        first.cancel()
        assert (await stays).status_code == 200
        await until_settled(rig, stands)
    assert [outcome for _, outcome in rig.recorder.rows].count(Outcome.CANCELLED) == 2


@pytest.mark.parametrize(
    ("leg", "number", "code"), [("prefill", 0, "request_expired"), ("decode", 1, "handoff_expired")]
)
async def test_nobody_waits_longer_than_its_deadline_or_its_kv(leg: str, number: int, code: str) -> None:
    async with fleet(
        "pd", **seats(1, 1, request_timeout_s=1.5, prefill_timeout_s=1.5, handoff_timeout_s=0.4)
    ) as (
        rig,
        stands,
    ):
        hang(stands[number], leg)
        asking(rig)
        await until(lambda: legs(stands[number]).get(leg) == 1)
        (late,) = asking(rig)
        response = await late
        assert rig.waiting(leg) == 0
    assert (response.status_code, error_of(response)["type"]) == (504, code)
    assert legs(stands[number])[leg] == 1


@dataclass
class Gate(LocalGate):
    open: bool = True

    def may_admit(self, now: float) -> bool:
        return self.open

    def refusal(self, now: float) -> str:
        return "" if self.open else "standby"


async def test_a_loss_of_control_ends_the_wait_for_a_prefill_and_not_the_one_for_a_decode() -> None:
    gate = Gate()
    async with fleet("pd", options=RouterOptions(gate=gate), **seats(1, 1)) as (rig, stands):
        hang(stands[1], "decode")
        (first,) = asking(rig)
        await until(lambda: legs(stands[1]).get("decode") == 1)
        (prefilled,) = asking(rig)
        await until(lambda: rig.waiting("decode") == 1)
        hang(stands[0], "prefill")
        (busy,) = asking(rig)
        await until(lambda: legs(stands[0]).get("prefill") == 3)
        (waits,) = asking(rig)
        await until(lambda: rig.waiting("prefill") == 1)
        gate.open = False
        refused = await waits
        assert (refused.status_code, error_of(refused)["code"]) == (503, "standby")
        assert rig.waiting("decode") == 1
        let_go(stands[1])
        first.cancel()
        busy.cancel()
        assert (await prefilled).status_code == 200
        await until_settled(rig, stands)


async def test_when_the_last_engine_goes_out_nobody_waits_for_it() -> None:
    async with fleet("PD", options=RouterOptions(judged=True), **seats(1, 1)) as (rig, stands):
        hang(stands[0], "prefill")
        (first,) = asking(rig)
        await until(lambda: legs(stands[0]).get("prefill") == 1)
        (waits,) = asking(rig)
        await until(lambda: rig.waiting("prefill") == 1)
        for number in range(3):
            refused = LegFailed("e0", Leg.PREFILL, FailureClass.CONNECTION, "x", "x", request=b"%d" % number)
            rig.heard.report(refused)
        response = await waits
        assert (response.status_code, error_of(response)["code"]) == (503, "backend_unavailable")
        first.cancel()
        await until_settled(rig, stands)
