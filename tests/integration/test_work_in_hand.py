"""Requests whose prefill an engine has when the fleet is taken out of placement: they run to their end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from narwhal.cluster.local import LocalGate
from narwhal.policy.wave import Wave
from tests.integration.test_request_path import COMPLETIONS, PROMPT, fleet, legs, order, until, until_settled
from tests.support.serving import Rig, RouterOptions
from tests.support.settings import engine_settings, recovery_settings, serving_settings

PATIENT = engine_settings(tokenize=False, first_token_timeout_s=60.0)
DEADLINE = 1_800_000_300.0


@dataclass
class HeldWithTheFleet(LocalGate):
    """As the gate of a whole router: closed while the fleet is held."""

    wave: Wave | None = None
    shutting_down: bool = False

    def may_admit(self, now: float) -> bool:
        return self.wave is None or not self.wave.reason

    def refusal(self, now: float) -> str:
        return "" if self.wave is None else self.wave.reason


def asked(rig: Rig) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(rig.http.post(COMPLETIONS, json=PROMPT, timeout=60.0))


def holds_kv(rig: Rig) -> list[tuple[int, int]]:
    return [
        (held.handoffs, held.orphaned) for held in rig.fleet.kv(asyncio.get_running_loop().time()).values()
    ]


async def assert_closed(rig: Rig) -> None:
    answer = await rig.http.post(COMPLETIONS, json=PROMPT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "standby")


@pytest.mark.parametrize(
    ("roles", "ejected"), [("pdd", False), ("PDD", False), ("p", False), ("pdd", True), ("PDD", True)]
)
async def test_a_request_in_its_prefill_is_served_and_no_new_one_is(roles: str, ejected: bool) -> None:
    """By a wave, and by an ejection under `whole_wave`. Its KV is pulled: nothing waits for a lease."""
    gate = HeldWithTheFleet()
    policy = recovery_settings(engine_restart_policy="whole_wave" if ejected else "individual")
    sections: dict[str, Any] = {"engine": PATIENT, "recovery": policy}
    async with fleet(roles, options=RouterOptions(gate=gate), **sections) as (rig, stands):
        gate.wave = rig.fleet.upkeep.wave
        order(stands[0], "core_stopped")
        waiting = asked(rig)
        await until(lambda: legs(stands[0]).get("prefill") == 1)
        if ejected:
            rig.fleet.standings.eject("e1", "it refused", now=0.0)
        else:
            rig.fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
        await assert_closed(rig)
        stands[0].engine.recover()
        answer = await waiting
        await until_settled(rig, stands)
        await assert_closed(rig)
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        served = [row for row, outcome in rig.recorder.rows if outcome.value == "served"]
        assert [(row.prefill_iid, row.decode_iid) for row in served] == [
            ("e0", "e0" if roles == "p" else "e2" if ejected else "e1")
        ]
        if roles != "p":
            assert holds_kv(rig) == [(0, 0)] * 3


async def test_a_decode_that_waits_for_a_seat_gets_it_in_a_wave() -> None:
    gate = HeldWithTheFleet()
    sections: dict[str, Any] = {"engine": PATIENT, "serving": serving_settings(decode_concurrency=1)}
    async with fleet("PD", options=RouterOptions(gate=gate), **sections) as (rig, stands):
        gate.wave = rig.fleet.upkeep.wave
        order(stands[1], "core_stopped")
        waiting = [asked(rig), asked(rig)]
        await until(lambda: rig.waiting("decode") == 1)
        rig.fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
        await assert_closed(rig)
        stands[1].engine.recover()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
        await until_settled(rig, stands)
        assert holds_kv(rig) == [(0, 0)] * 2


async def test_the_next_attempt_of_a_request_in_hand_is_not_begun() -> None:
    """Its prefill would be new work."""
    gate = HeldWithTheFleet()
    sections: dict[str, Any] = {"engine": PATIENT, "serving": serving_settings(max_attempts=3)}
    async with fleet("PDD", options=RouterOptions(gate=gate), **sections) as (rig, stands):
        gate.wave = rig.fleet.upkeep.wave
        order(stands[0], "core_stopped")
        waiting = asked(rig)
        await until(lambda: legs(stands[0]).get("prefill") == 1)
        rig.fleet.upkeep.drain_wave("w1", deadline_at=DEADLINE)
        for stand in stands[1:]:
            order(stand, "status", status=500, leg="decode")
        stands[0].engine.recover()
        answer = await waiting
        await until_settled(rig, stands)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "standby")
        assert legs(stands[0]) == {"prefill": 1}
