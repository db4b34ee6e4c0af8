"""Requests that wait for a place: in order, bounded, and out at once when there is nothing to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from narwhal.cluster.local import LocalGate
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.model.settings import RecoverySettings, ServingSettings
from narwhal.policy.travel import Opening
from narwhal.serving.waiting_room import LOOK_S
from narwhal.sim.rack import Stand
from tests.integration.test_request_path import COMPLETIONS, PROMPT, error_of, fleet, order, until_settled
from tests.support.scripted import until
from tests.support.serving import Rig, RouterOptions
from tests.support.settings import handoff_document, recovery_settings, serving_settings
from tests.support.wire import Wire, request_bytes

Answer = asyncio.Task[httpx.Response]


def queueing(**changes: Any) -> ServingSettings:
    """One place, three in line, for longer than any test runs."""
    values = {"max_connections": 1, "queue_capacity": 3, "queue_timeout_s": 60.0}
    return serving_settings(**{**values, **changes})


@dataclass(frozen=True, slots=True)
class Site:
    """A router whose only place is taken by `holder`, which its engine never answers."""

    rig: Rig
    stands: Sequence[Stand]
    gate: LocalGate
    holder: Answer

    def ask(self, name: str = "x") -> Answer:
        return asyncio.create_task(self.rig.http.post(COMPLETIONS, json={**PROMPT, "prompt": name}))

    async def line_up(self, *names: str) -> list[Answer]:
        """One after the other, each in line before the next one comes."""
        asked = []
        for name in names:
            before = self.rig.room.queued
            asked.append(self.ask(name))
            await until(lambda before=before: self.rig.room.queued > before, f"{name} in line")
        return asked

    async def leave(self, *clients: Answer) -> None:
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)

    @property
    def asked(self) -> list[str]:
        """The prompts that reached the producer, in order, less the holder's."""
        seen = [seen for seen in self.stands[0].engine.stats.seen if seen.leg == "prefill"]
        return [one.document()["body"] for one in seen[1:]]


@asynccontextmanager
async def full(
    *, recovery: RecoverySettings | None = None, judged: bool = False, **settings: Any
) -> AsyncIterator[Site]:
    gate = LocalGate()
    options = RouterOptions(gate=gate, judged=judged)
    sections = {"serving": queueing(**settings), "recovery": recovery or recovery_settings()}
    async with fleet("PD", options=options, **sections) as (rig, stands):
        order(stands[0], "hang", leg="prefill", count=1)
        holder = asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT))
        await until(lambda: rig.fleet.resident()["e0"].prefill == 1, "the place is taken")
        site = Site(rig, stands, gate, holder)
        yield site
        await site.leave(holder)
        await until_settled(rig, stands)
        assert rig.room.queued == 0


async def test_they_are_served_in_the_order_they_came():
    async with full() as site:
        waiting = await site.line_up("first", "second", "third")
        assert (site.rig.ledger.inflight, site.rig.room.queued) == (4, 3)
        await site.leave(site.holder)
        assert [(await one).status_code for one in waiting] == [200] * 3
        for name, body in zip(("first", "second", "third"), site.asked, strict=True):
            assert name in body
    assert site.rig.room.high_water == 3
    waits = [row.queue_wait_s for row, _ in site.rig.recorder.rows]
    assert waits[0] is None, "the holder never waited"
    assert all(wait is not None and wait > 0.0 for wait in waits[1:])


async def test_a_place_that_is_free_makes_nobody_wait():
    async with fleet("pd", serving=queueing()) as (rig, _):
        for _ in range(3):
            assert (await rig.http.post(COMPLETIONS, json=PROMPT)).status_code == 200
    assert rig.room.high_water == 0
    assert {row.queue_wait_s for row, _ in rig.recorder.rows} == {None}


async def test_over_places_and_line_a_request_is_rejected_at_once():
    async with full(queue_capacity=1) as site:
        (waiting,) = await site.line_up("first")
        turned_away = await site.ask()
        assert (turned_away.status_code, turned_away.headers["retry-after"]) == (429, "1")
        assert error_of(turned_away)["type"] == "server_overloaded_error"
        await site.leave(waiting)
    assert site.rig.totals.own.rejected == 1


async def test_a_wait_that_is_too_long_ends_with_504():
    async with full(queue_timeout_s=0.2) as site:
        (waiting,) = await site.line_up("first")
        answer = await waiting
        assert (answer.status_code, error_of(answer)["type"]) == (504, "queue_expired")
        assert site.asked == []
        assert site.rig.last.queue_wait_s >= 0.2
    assert site.rig.totals.own.expired == 1


async def test_a_wait_never_goes_past_the_requests_deadline():
    async with full(request_timeout_s=0.4, prefill_timeout_s=0.4, queue_timeout_s=60.0) as site:
        order(site.stands[0], "hang", leg="prefill", count=1)
        (waiting,) = await site.line_up("first")
        answer = await waiting
        assert (answer.status_code, error_of(answer)["type"]) in [
            (504, "queue_expired"),
            # The holder's own deadline may free the place a moment earlier.
            (504, "request_expired"),
        ]
        assert (await site.holder).status_code == 504


async def test_loss_of_control_empties_it():
    async with full() as site:
        waiting = await site.line_up("first", "second")
        site.gate.shutting_down = True
        for one in waiting:
            answer = await one
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert error_of(answer)["code"] == "standby"
        assert not site.holder.done(), "what was sent runs to its end"
        assert site.asked == []
    assert site.rig.totals.own.rejected == 2


async def test_loss_of_the_last_eligible_engine_empties_it():
    async with full() as site:
        waiting = await site.line_up("first", "second")
        site.rig.fleet.restore(
            handoff_document(e0="prefill", e1="decode"), 0.0, opening=Opening(cautious=True)
        )
        for one in waiting:
            answer = await one
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert error_of(answer)["code"] == "backend_unavailable"
        assert not site.holder.done()
    assert site.rig.totals.own.rejected == 2


async def test_so_does_the_ejection_of_the_last_one_and_a_hold_does_not():
    """A hold never takes the last engine of a leg, so the line stays; a confirmed failure may."""
    async with full(recovery=recovery_settings(eject_after=1), judged=True) as site:
        waiting = await site.line_up("first", "second")
        report = site.rig.heard.report
        report(LegFailed("e1", Leg.DECODE, FailureClass.STREAM, "stream:early_end", "cut"))
        await asyncio.sleep(3 * LOOK_S)
        assert site.rig.room.queued == 2
        report(LegFailed("e1", Leg.DECODE, FailureClass.CONNECTION, "connection:connect", "refused"))
        for one in waiting:
            assert error_of(await one)["code"] == "backend_unavailable"
        refused = await site.rig.http.post(COMPLETIONS, json=PROMPT)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "backend_unavailable")
    assert site.rig.totals.own.rejected == 3


async def test_a_client_that_leaves_frees_its_place_in_line_at_once():
    async with full(queue_capacity=1) as site:
        (gone,) = await site.line_up("gone")
        await site.leave(gone)
        await until(lambda: site.rig.room.queued == 0, "out of the line")
        assert site.rig.last.terminal == "cancelled"
        assert site.rig.last.queue_wait_s > 0.0
        (stays,) = await site.line_up("stays")
        await site.leave(site.holder)
        assert (await stays).status_code == 200
        assert len(site.asked) == 1
    assert (site.rig.totals.own.cancelled, site.rig.totals.own.served) == (2, 1)


async def test_a_client_that_leaves_as_its_turn_comes_passes_the_place_on():
    """Both ends in one step of the loop: the place is given to one who is being cancelled."""
    async with full() as site:
        gone, stays = await site.line_up("gone", "stays")
        site.holder.cancel()
        gone.cancel()
        assert (await stays).status_code == 200
        await asyncio.wait((gone,))
    assert (site.rig.totals.own.cancelled, site.rig.totals.own.served) == (2, 1)


async def test_a_bad_request_in_line_is_told_at_once_and_leaves_it():
    async with full(queue_capacity=1) as site:
        bad = await site.rig.http.post(COMPLETIONS, json={**PROMPT, "n": 2})
        assert bad.status_code == 400
        assert site.rig.room.queued == 0
        (waiting,) = await site.line_up("first")
        await site.leave(waiting)
    assert site.rig.totals.own.invalid_requests == 1


@pytest.mark.parametrize("turn_first", [True, False])
async def test_the_place_in_line_is_that_of_the_arrival_not_of_the_body(turn_first: bool):
    """Its head came first, its body last: the others wait behind it, and it holds its place meanwhile."""
    async with full() as site:
        whole = request_bytes("POST", COMPLETIONS, body={**PROMPT, "prompt": "slow", "stream": False})
        wire = await Wire.open(site.rig.url)
        await wire.send(whole[:-5])
        await until(lambda: site.rig.room.queued == 1, "the slow one in line")
        (later,) = await site.line_up("later")
        if turn_first:
            await site.leave(site.holder)
            await until(lambda: site.rig.room.queued == 1, "the slow one has its place")
            assert site.asked == []
        await wire.send(whole[-5:])
        if not turn_first:
            await site.leave(site.holder)
        assert (await later).status_code == 200
        assert "slow" in site.asked[0]
        assert "later" in site.asked[1]
        wire.close()


async def test_many_places_come_back_and_nobody_is_lost():
    """Forty through two places and a line of forty, every third client leaves: all end, all is counted."""
    async with fleet("pd", serving=queueing(max_connections=2, queue_capacity=40)) as (rig, stands):
        order(stands[0], "hang", leg="prefill", count=2)
        holders = [asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT)) for _ in range(2)]
        await until(lambda: rig.fleet.resident()["e0"].prefill == 2, "the places are taken")
        crowd = [asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT)) for _ in range(40)]
        await until(lambda: rig.room.queued == 40, "everybody in line")
        for one in [*holders, *crowd[::3]]:
            one.cancel()
        answers = await asyncio.gather(*crowd, return_exceptions=True)
        await asyncio.wait(holders)
        await until_settled(rig, stands)
    stayed = [answer for index, answer in enumerate(answers) if index % 3]
    assert [answer.status_code for answer in stayed if isinstance(answer, httpx.Response)] == [200] * 26
    assert (rig.totals.own.served, rig.totals.own.cancelled) == (26, 16)
    assert rig.room.high_water == 40
