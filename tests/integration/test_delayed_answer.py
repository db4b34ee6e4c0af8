"""A prefill's answer that was long under way, while nobody stood still: no decode after the KV lease."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from narwhal.sim.text import answer_text, text_prompt
from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.tcp_gate import TcpGate, tcp_gate
from tests.support.wire import Answer, ask, play

LEASE_S = 3.0
BOUND_S = 2.5
PROMPT = "how deep does a narwhal dive under the ice of the long winter? " * 8
RIGHT = answer_text(text_prompt(PROMPT).seed, 12)


@dataclass
class Site:
    """`gate` stands before the engine that prefills first."""

    engines: EngineProcess
    gate: TcpGate
    router: Router

    def asked(self) -> Answer:
        return play(self._ask(), within_s=60.0)

    def asked_through_an_outage(self) -> Answer:
        """The way to the producer is shut in the prefill, until the lease of its KV is over and others have
        got its blocks."""
        return play(self._through_an_outage(), within_s=120.0)

    async def _ask(self) -> Answer:
        body = {"prompt": PROMPT, "max_tokens": 12, "stream": False}
        return await ask(self.router.url, "/v1/completions", body=body)

    async def _through_an_outage(self) -> Answer:
        producer = self.engines.engines[0]
        expired = producer.stats()["expired"]
        producer.order("slow", leg="prefill", seconds=0.5, count=1)
        task = asyncio.create_task(self._ask())
        await asyncio.to_thread(eventually, lambda: producer.stats()["running"] == 1)
        self.gate.shut()
        await asyncio.to_thread(eventually, lambda: producer.stats()["expired"] > expired)
        await asyncio.to_thread(self._use_all_blocks, producer.url)
        self.gate.reopen()
        return await task

    def _use_all_blocks(self, url: str) -> None:
        for number in range(16):
            prefill = {
                "model": "simulated",
                "prompt": f"what somebody else asked of number {number} " * 12,
                "max_tokens": 1,
                "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
            }
            body, headers = json.dumps(prefill).encode(), {"content-type": "application/json"}
            request = urllib.request.Request(f"{url}/v1/completions", body, headers)
            with urllib.request.urlopen(request, timeout=30.0) as answer:
                assert answer.status == 200


@contextmanager
def site(tmp_path: Path, **sections: Any) -> Iterator[Site]:
    parts = ("--prefill", "0.02", "--interval", "0.01", "--kv-lease", str(LEASE_S), "--kv-blocks", "256")
    with engine_process(2, *parts) as engines:
        producer, consumer = engines.engines
        with tcp_gate("127.0.0.1", producer.port) as gate:
            behind = replace(producer, url=f"http://127.0.0.1:{gate.port}")
            fleet = fleet_document(
                [behind, consumer],
                serving={"handoff_timeout_s": BOUND_S, "max_attempts": 3},
                **{
                    "engine": {"tokenize": False, "health_timeout_s": 0.3},
                    "controller": {"monitor_interval_s": 0.2},
                    "recovery": {"liveness_every": 0},
                    **sections,
                },
            )
            with router_process(tmp_path, fleet) as router:
                yield Site(engines, gate, router)


def assert_decoded_from_a_fresh_prefill(site: Site, answer: Answer) -> None:
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["text"] == RIGHT
    row = site.router.journalled(answer.headers["x-request-id"])
    assert {(one["class"], one["kind"]) for one in row["attempt_failures"]} == {("none", "HandoffExpired")}
    assert site.router.state()["failed"] == 0


@pytest.mark.parametrize("known_s", [0.0, 1.5], ids=["first", "known"])
def test_its_date_tells(tmp_path: Path, known_s: float) -> None:
    """No health check is made. Of an engine that has answered nothing before, the question's age is taken.

    Known is one whose date was seen just renewed, which is once in a second.
    """
    with site(tmp_path) as stage:
        until = time.monotonic() + known_s
        while time.monotonic() < until:
            assert stage.asked().status == 200
        assert stage.engines.engines[0].stats()["held"] == 0
        assert_decoded_from_a_fresh_prefill(stage, stage.asked_through_an_outage())


def test_missed_health_checks_tell(tmp_path: Path) -> None:
    """The router itself had ejected the engine in that outage."""
    with site(tmp_path, recovery={"liveness_every": 1, "liveness_misses": 2}) as stage:
        assert_decoded_from_a_fresh_prefill(stage, stage.asked_through_an_outage())
