"""Whose fault it is, on a whole router: no sound engine loses its place for others' faults."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.engines import EngineProcess, RemoteEngine, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, ask, play

CLIENTS = itertools.count()


class Site:
    """e0 and e1 prefill, e2 and e3 decode; two attempts a request."""

    def __init__(self, router: Router, engines: EngineProcess) -> None:
        self.router = router
        self.engines = engines

    def engine(self, number: int) -> RemoteEngine:
        return self.engines.engines[number]

    def ask(self, prompt: str = "", **fields: Any) -> Answer:
        """Without a prompt one that nobody else asks."""
        prompt = prompt or f"question {next(CLIENTS)}"
        body = {"prompt": prompt, "max_tokens": 3, "stream": True, **fields}
        return play(ask(self.router.url, "/v1/completions", body=body))

    def statuses(self, times: int) -> set[int]:
        return {self.ask().status for _ in range(times)}

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.router.journal() if row.get("kind") == kind]

    def sound(self) -> bool:
        state = self.router.state()
        troubled = state["quarantined"], state["ejected"], state["edges"], state["breaker"]["verifying"]
        return not any(troubled)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with engine_process(4, "--prefill", "0", "--interval", "0.001") as engines:
        fleet = fleet_document(
            engines.engines,
            controller={"monitor_interval_s": 0.1},
            recovery={"readmit_every": 5, "liveness_every": 5},
            serving={"max_attempts": 2, "retry_base_s": 0.001, "retry_cap_s": 0.002, "retry_budget": 1000},
            engine={"tokenize": False, "first_token_timeout_s": 1.0, "health_timeout_s": 1.0},
        )
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield Site(router, engines)


@pytest.fixture
def site(standing: Site) -> Iterator[Site]:
    """Without faults before, everybody back after."""
    yield standing
    for engine in standing.engines.engines:
        engine.clear()
    eventually(standing.sound, what="everything is healed")
    assert standing.ask().status == 200
    assert "Traceback" not in standing.router.process.output, standing.router.process.output


def test_one_poisoned_request_sent_to_all_costs_no_engine_its_place(site: Site) -> None:
    ejections = len(site.events("ejection"))
    for engine in site.engines.engines:
        engine.order("status", status=500, match="drop everything")
    for _ in range(8):
        assert site.ask("drop everything").status == 500, "the engine's own status"
        assert site.ask().status == 200
    state = site.router.state()
    assert (state["ejected"], state["quarantined"]) == ([], [])
    assert state["breaker"]["failures"] == {}
    for engine in site.engines.engines:
        engine.clear()
    eventually(lambda: site.events("request_suspected"), what="the journal tells of it")
    assert len(site.events("ejection")) == ejections


def test_a_pair_whose_transfers_fail_is_avoided_and_both_engines_stay(site: Site) -> None:
    producer = met(site, "e2")
    number = int(producer.removeprefix("e"))
    site.engine(2).order("edge", port=urlsplit(site.engine(number).side_url).port, how="lost")
    eventually(lambda: site.ask().status == 200 and avoided(site), what="the edge is avoided")
    assert avoided(site) == [(producer, "e2")]
    eventually(lambda: not site.router.state()["quarantined"], what="its consumer does well alone")
    before = site.router.state()["serving"]["retries"]
    crossed = [pair(site.ask(), site) for _ in range(12)]
    assert site.router.state()["serving"]["retries"] == before, "no request has to be tried again"
    assert site.router.state()["ejected"] == []
    assert (producer, "e2") not in crossed
    assert "e2" in {consumer for _, consumer in crossed}, "it serves with others"
    # The KV that nobody pulled weighs on its producer until the lease ends: it need not be chosen before.
    assert site.router.get("/narwhal/lifecycle")["engines"][producer]["accepts_new"], "the producer may"
    site.engine(2).clear()
    eventually(lambda: not avoided(site), what="its probe is good again")
    eventually(lambda: site.events("edge_restored"), what="the journal tells of it")


def met(site: Site, consumer: str) -> str:
    """The producer whose KV it gets as requests come one after the other."""
    crossed = [pair(site.ask(), site) for _ in range(4)]
    return next(producer for producer, decoded in reversed(crossed) if decoded == consumer)


def pair(answer: Answer, site: Site) -> tuple[str, str]:
    """Producer and consumer of one answer."""
    rid = answer.headers["x-request-id"]
    eventually(lambda: row_of(site, rid), what="its row is written")
    row = row_of(site, rid)[0]
    return row["prefill_iid"], row["decode_iid"]


def row_of(site: Site, rid: str) -> list[dict[str, Any]]:
    return [row for row in site.router.journal() if row.get("rid") == rid]


def avoided(site: Site) -> list[tuple[str, str]]:
    edges = site.router.state()["edges"]
    return [(edge["producer"], edge["consumer"]) for edge in edges if edge["avoided"]]


def test_a_producer_nobody_can_pull_from_is_out_and_its_consumers_stay(site: Site) -> None:
    site.engine(1).order("handoff", variant="unknown_engine")
    eventually(lambda: site.ask().status and "e1" in site.router.state()["ejected"], what="it is out")
    assert site.router.state()["ejected"] == ["e1"]
    assert site.statuses(8) == {200}


def test_an_engine_with_the_wrong_key_is_out_and_the_reason_names_the_setting(site: Site) -> None:
    site.engine(0).order("status", status=401)
    eventually(lambda: site.ask().status and "e0" in site.router.state()["ejected"], what="it is out")
    assert site.statuses(6) == {200}
    eventually(lambda: any("401" in row["reason"] for row in site.events("ejection")), what="told")
    reasons = [row["reason"] for row in site.events("ejection") if row["iid"] == "e0"]
    # A sweep may meet its /health before requests have met its legs.
    assert "engine.engine_api_key_env" in reasons[-1] or "/health answered 401" in reasons[-1]


def test_bad_requests_of_clients_eject_nobody(site: Site) -> None:
    ejections = len(site.events("ejection"))
    for engine in site.engines.engines:
        engine.order("status", status=400, match="too long")
    for number in range(20):
        assert site.ask(f"too long {number}").status == 400
        assert site.ask().status == 200
    eventually(site.sound, what="whoever was held has passed its probe")
    assert len(site.events("ejection")) == ejections


def test_back_pressure_is_got_round_and_ejects_nobody(site: Site) -> None:
    ejections = len(site.events("ejection"))
    site.engine(0).order("status", leg="prefill", status=429, retry_after=30)
    assert site.ask().status == site.ask().status == 200
    before = site.engine(0).stats()["legs"]["prefill"]
    assert site.statuses(20) == {200}
    assert site.engine(0).stats()["legs"]["prefill"] == before, "it asked for half a minute"
    eventually(site.sound, what="its health is good")
    assert len(site.events("ejection")) == ejections


def test_after_a_restart_every_pair_that_knew_the_old_process_is_probed(site: Site) -> None:
    assert site.statuses(8) == {200}
    told = len(site.events("peer_restarted"))
    site.engine(3).order("restart")
    eventually(lambda: site.ask().status == 200, what="it serves")
    eventually(lambda: len(site.events("peer_restarted")) > told, what="the journal tells of it")
    assert site.events("peer_restarted")[-1]["iid"] == "e3"
    eventually(site.sound, what="its edges have passed their probes")
