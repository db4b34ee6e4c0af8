"""What the rules of pairs come to on a whole router: who is out, who stays, by real transfers that fail.

The machines that decide it are tried alone in tests/unit/policy. Here every KV handoff crosses sockets.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.engines import EngineProcess, RemoteEngine, engine_process
from tests.support.processes import eventually
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, ask, play

CLIENTS = itertools.count()
PRODUCERS, CONSUMERS = ("e0", "e1"), ("e2", "e3")


class Site:
    """e0 and e1 prefill, e2 and e3 decode, all pinned; one attempt a request."""

    def __init__(self, router: Router, engines: EngineProcess) -> None:
        self.router = router
        self._engines = {engine.name: engine for engine in engines.engines}
        self._began = time.time()

    def engine(self, iid: str) -> RemoteEngine:
        return self._engines[iid]

    def ask(self) -> Answer:
        """One that nobody else asks."""
        body = {"prompt": f"question {next(CLIENTS)}", "max_tokens": 3, "stream": True}
        return play(ask(self.router.url, "/v1/completions", body=body))

    def ask_at_once(self, times: int) -> None:
        """One by one they would meet the same partner each time: both roles alternate in step."""
        with ThreadPoolExecutor(times) as pool:
            for answer in [pool.submit(self.ask) for _ in range(times)]:
                answer.result()

    def until(self, ejected: set[str], what: str) -> int:
        """Asks until so many are out and nobody is held; how many requests failed meanwhile."""
        failed = 0

        def look() -> bool:
            nonlocal failed
            failed += self.ask().status != 200
            state = self.router.state()
            return set(state["ejected"]) == ejected and not state["quarantined"]

        eventually(look, what=what)
        return failed

    def break_edge(self, producer: str, consumer: str) -> None:
        port = urlsplit(self.engine(producer).side_url).port
        self.engine(consumer).order("edge", port=port, how="lost")

    def told(self, kind: str) -> list[str]:
        """Engines of which the journal told that since this test began, where it took effect."""
        rows = [row for row in self.router.journal() if row["kind"] == kind and row["at"] >= self._began]
        return [row["iid"] for row in rows if row.get("enforced", True)]

    def ejected_were(self, iids: set[str]) -> None:
        """These and nobody else. The journal is written a moment behind."""
        eventually(lambda: set(self.told("ejection")) >= iids, what="the journal tells of it")
        assert set(self.told("ejection")) == iids

    def producer_of(self, consumer: str) -> str:
        """Who prefills for it at present: requests that come one by one keep to the same pairs."""
        producer = ""

        def decoded() -> bool:
            nonlocal producer
            row = self.router.journalled(self.ask().headers["x-request-id"])
            producer = row["prefill_iid"]
            return bool(row["decode_iid"] == consumer)

        eventually(decoded, what=f"{consumer} decodes")
        return producer

    def clear(self) -> None:
        for engine in self._engines.values():
            engine.clear()

    def sound(self) -> bool:
        state = self.router.state()
        # An edge that is not avoided keeps its count until traffic crosses it.
        avoided = [edge for edge in state["edges"] if edge["avoided"]]
        troubled = state["quarantined"], state["ejected"], avoided, state["breaker"]["verifying"]
        return not any(troubled)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Router, EngineProcess]]:
    with engine_process(4, "--prefill", "0", "--interval", "0.001") as engines:
        fleet = fleet_document(
            engines.engines,
            controller={"monitor_interval_s": 0.1},
            recovery={"readmit_every": 5, "liveness_every": 5},
            engine={"tokenize": False, "first_token_timeout_s": 1.0, "health_timeout_s": 1.0},
        )
        for row in fleet["engines"]:
            row["pin"] = True
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield router, engines


@pytest.fixture
def site(running: tuple[Router, EngineProcess]) -> Iterator[Site]:
    """Without faults before, everybody back after."""
    made = Site(*running)
    yield made
    made.clear()
    eventually(made.sound, what="everything is healed")
    assert made.ask().status == 200
    assert "Traceback" not in made.router.process.output, made.router.process.output


def test_a_producer_with_bad_handoffs_is_found_while_one_consumer_is_left(site: Site) -> None:
    """Nobody else could clear that consumer of it, but the other producer does."""
    site.engine("e3").order("refuse")
    site.until({"e3"}, "one consumer is left")
    site.engine("e1").order("handoff", variant="unknown_engine")
    site.until({"e1", "e3"}, "the producer is out")
    site.ejected_were({"e1", "e3"})
    assert {site.ask().status for _ in range(8)} == {200}


def test_a_producer_with_bad_handoffs_beside_a_sound_one_costs_no_consumer_its_place(site: Site) -> None:
    site.engine("e0").order("handoff", variant="unknown_engine")
    site.until({"e0"}, "the producer is out")
    site.ejected_were({"e0"})


def test_an_edge_is_the_pairs_matter_though_the_other_producer_asks_for_relief(site: Site) -> None:
    """A single 429 is no reason not to ask it: nobody else could clear the consumer."""
    producer = site.producer_of("e3")
    (other,) = set(PRODUCERS) - {producer}
    before = site.engine(other).stats()["legs"]["prefill"]
    site.engine(other).order("status", leg="prefill", status=429, retry_after=5, count=1)

    def asks() -> bool:
        site.ask_at_once(3)
        return bool(site.engine(other).stats()["legs"]["prefill"] > before)

    eventually(asks, what="it asks for relief")
    site.break_edge(producer, "e3")

    def settled() -> bool:
        site.ask()
        return bool(site.told("edge_avoided")) and not site.router.state()["quarantined"]

    eventually(settled, what="the edge is avoided")
    assert site.told("ejection") == []


def test_a_consumer_that_fails_with_every_producer_is_out(site: Site) -> None:
    """It does well alone, so a probe of its own proves nothing."""
    for producer in PRODUCERS:
        site.break_edge(producer, "e3")
    failed = site.until({"e3"}, "the consumer is out")
    assert failed <= 3 * len(PRODUCERS)
    site.ejected_were({"e3"})
    assert {site.ask().status for _ in range(8)} == {200}


def test_a_consumer_that_fails_with_one_producer_stays(site: Site) -> None:
    site.break_edge(site.producer_of("e3"), "e3")
    eventually(lambda: site.ask().status and site.told("edge_avoided"), what="the edge is avoided")
    assert site.until(set(), "nobody is held any more") <= 3
    site.ejected_were(set())


def test_busy_consumers_tell_nothing_of_their_producers(site: Site) -> None:
    for consumer in CONSUMERS:
        site.engine(consumer).order("status", leg="decode", status=429, retry_after=1)
    assert {site.ask().status for _ in range(10)} == {429}
    state = site.router.state()
    assert not set(PRODUCERS) & state["breaker"]["failures"].keys()
    assert (state["ejected"], state["quarantined"], state["edges"]) == ([], [], [])


def test_a_suspect_producer_waits_for_a_consumer_that_is_not_busy(site: Site) -> None:
    """429 to its probes convicts it of nothing and frees it of nothing. Its own answers to them are good."""
    site.engine("e1").order("handoff", leg="prefill", variant="unknown_engine")
    for consumer in CONSUMERS:
        site.engine(consumer).order("status", leg="probe", status=429, retry_after=1)

    def is_held() -> bool:
        site.ask_at_once(5)
        return "e1" in site.router.state()["quarantined"]

    eventually(is_held, what="it is held")
    probes = site.engine("e1").stats()["legs"].get("probe", 0)
    eventually(
        lambda: site.engine("e1").stats()["legs"]["probe"] >= probes + 6, what="it is probed and probed"
    )
    state = site.router.state()
    assert ("e1" in state["quarantined"], "e1" in state["ejected"]) == (True, False)
    site.engine("e1").clear()
    for consumer in CONSUMERS:
        site.engine(consumer).clear()
    eventually(lambda: "e1" not in site.router.state()["quarantined"], what="a probe across has freed it")
    site.ejected_were(set())
