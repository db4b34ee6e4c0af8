"""Many clients, engines that misbehave at random: every answer is right, or says that it failed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from narwhal.sim.text import answer_text, text_prompt
from tests.support.engines import EngineProcess, call, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, Wire, play

CLIENTS = 600
AT_ONCE = 40
TOKENS = 12
OUTCOMES = ("served", "failed", "refused", "rejected", "expired", "cancelled", "invalid_requests")
ORDERS: Sequence[dict[str, Any]] = (
    {"fault": "status", "status": 500},
    {"fault": "status", "status": 429, "retry_after": 3},
    {"fault": "status", "status": 400},
    {"fault": "hang"},
    {"fault": "rst"},
    {"fault": "close", "after": 3},
    {"fault": "stall", "after": 2},
    {"fault": "no_done", "after": 5},
    {"fault": "abort", "after": 4},
    {"fault": "error_in_200", "after": 3},
    {"fault": "error_in_200", "after": 0},
    {"fault": "silent_first_token"},
    {"fault": "slow_first_token", "seconds": 0.2},
    {"fault": "crlf"},
    {"fault": "comments"},
    {"fault": "split_utf8"},
    {"fault": "one_byte"},
    {"fault": "handoff", "variant": "missing"},
    {"fault": "handoff", "variant": "null_blocks"},
    {"fault": "handoff", "variant": "unknown_engine"},
)


async def order_at_random(engines: EngineProcess, dice: random.Random) -> None:
    """So many that about every third request is hit by something."""
    while True:
        engine, orders = dice.choice(engines.engines), dice.choices(ORDERS, k=4)
        legs = ["prefill" if order["fault"] == "handoff" else "decode" for order in orders]
        faults = [{**order, "leg": leg, "count": 1} for order, leg in zip(orders, legs, strict=True)]
        await asyncio.to_thread(call, "POST", f"{engine.side_url}/sim/faults", {"faults": faults})
        await asyncio.sleep(0.01)


async def one_client(url: str, index: int, *, dice: random.Random) -> str:
    """How it ended for the client: right, status, cut or left."""
    prompt = f"prompt {index}: {dice.random()}"
    stream = dice.random() < 0.6
    wire = await Wire.open(url)
    try:
        body = {"prompt": prompt, "max_tokens": TOKENS, "stream": stream}
        await wire.request("POST", "/v1/completions", body=body)
        if dice.random() < 0.1:
            await asyncio.sleep(dice.uniform(0, 0.2))
            return "left"
        return judge(await wire.answer(), answer_text(text_prompt(prompt).seed, TOKENS), stream=stream)
    finally:
        wire.close()


def judge(answer: Answer, right: str, *, stream: bool) -> str:
    assert answer.complete
    assert "127.0.0.1" not in answer.body.decode()
    if answer.status != 200:
        assert answer.status in (400, 429, 502, 504), answer.body
        assert answer.error["message"]
        return "status"
    if not stream:
        choice = answer.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (right, "length")
        return "right"
    if answer.events[-1] == "[DONE]":
        assert answer.text == right
        return "right"
    assert "error" in answer.documents[-1]
    assert right.startswith(answer.text), "what came before the error is right too"
    return "cut"


async def storm(router: Router, engines: EngineProcess) -> Counter[str]:
    dice, seats = random.Random(2026), asyncio.Semaphore(AT_ONCE)

    async def seated(index: int) -> str:
        async with seats:
            return await one_client(router.url, index, dice=dice)

    orders = asyncio.create_task(order_at_random(engines, dice))
    ends = await asyncio.gather(*(seated(index) for index in range(CLIENTS)))
    orders.cancel()
    return Counter(ends)


def test_no_client_gets_a_wrong_answer_and_every_request_has_one_outcome(tmp_path: Path) -> None:
    with engine_process(4, "--prefill", "0.01", "--interval", "0.005") as engines:
        limits = {"first_token_timeout_s": 1.0, "decode_read_timeout_s": 1.0, "tokenize_timeout_s": 0.3}
        fleet = fleet_document(engines.engines, engine=limits, serving={"prefill_timeout_s": 1.0})
        with router_process(tmp_path / "router", fleet) as router:
            ends = play(storm(router, engines), within_s=120.0)
            assert all(ends[end] for end in ("right", "status", "cut", "left")), ends
            router.becomes_idle()
            for engine in engines.engines:
                engine.clear()
            engines.becomes_idle()
            state = router.state()
            assert state["offered"] == sum(state[name] for name in OUTCOMES) <= CLIENTS
            assert state["served"] >= ends["right"]
            assert "Traceback" not in router.process.output, router.process.output
            told = {name: state[name] for name in OUTCOMES if state[name]}
            eventually(
                lambda: Counter(row["terminal"] for row in requests_of(router)) == told,
                what="a journal row for each request",
            )


def requests_of(router: Router) -> list[dict[str, Any]]:
    """The journal's request rows, once the router has written them all."""
    router.process.stop()
    return [row for row in router.journal() if "terminal" in row]
