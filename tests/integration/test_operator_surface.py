"""The operator surface of real routers over real sockets, alone and as a pair on a store."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from narwhal.model.monitoring import STAGES
from narwhal.model.request import Outcome
from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import LIVENESS_S, eventually
from tests.support.redis import on, running
from tests.support.router import Router, fleet_document, router_process

LEASE = ("--lease-ttl", "3", "--lease-renew-interval", "0.3", "--lease-safety-margin", "0.5")
GET_ROUTES = (
    "/ready",
    "/health",
    "/metrics",
    "/narwhal/state",
    "/narwhal/handoff",
    "/narwhal/cluster",
    "/v1/models",
)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


def connect(router: Router) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(router.url.removeprefix("http://"), timeout=LIVENESS_S)


def ask(router: Router, method: str, path: str, body: bytes = b"") -> Answer:
    connection = connect(router)
    try:
        connection.request(method, path, body or None, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[EngineProcess]:
    with engine_process(2, "--interval", "0.02", "--max-model-len", "4096") as process:
        yield process


@pytest.fixture(scope="module")
def alone(engines: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    fleet = fleet_document(engines.engines, controller={"monitor_interval_s": 0.1})
    with router_process(tmp_path_factory.mktemp("alone"), fleet) as router:
        yield router


# --- one router without a store --------------------------------------------------------------------


def test_a_router_without_a_store_is_its_own_owner(alone: Router) -> None:
    ready = ask(alone, "GET", "/ready")
    assert ready.status == 200
    body = ready.document
    assert (body["status"], body["control_ready"], body["reason"]) == ("ready", True, "")
    assert (body["role"], body["epoch"], body["holder"]) == ("active", 0, "")
    assert ask(alone, "GET", "/narwhal/cluster").document["lease"]["state"] == "local"
    assert ask(alone, "GET", "/narwhal/handoff").document["schema"] == "narwhal.handoff"


def test_health_counts_the_engines(alone: Router) -> None:
    assert ask(alone, "GET", "/health").document == {
        "status": "ok", "instances": 2, "available_instances": 2,
    }  # fmt: skip


def test_the_model_list_learns_the_context_length_from_the_engines(alone: Router) -> None:
    def length() -> Any:
        return ask(alone, "GET", "/v1/models").document["data"][0]["max_model_len"]

    eventually(lambda: length() is not None, what="an engine told its context length")
    assert length() == 4096


@pytest.mark.parametrize("path", GET_ROUTES)
def test_head_answers_as_get_without_a_body(alone: Router, path: str) -> None:
    head = ask(alone, "HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == ask(alone, "GET", path).headers["content-type"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/ready/", 404),
        ("GET", "/narwhal/state/", 404),
        ("GET", "/v1/completions/", 404),
        ("GET", "/nowhere", 404),
        ("POST", "/narwhal/lifecycle/nowhere", 404),
        ("PUT", "/nowhere", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/ready", 405),
        ("POST", "/narwhal/state", 405),
        ("PATCH", "/metrics", 405),
        ("OPTIONS", "/health", 405),
    ],
)
def test_what_no_route_takes_gets_the_envelope(alone: Router, method: str, path: str, status: int) -> None:
    answer = ask(alone, method, path)
    assert answer.status == status
    assert set(answer.document["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    assert ("allow" in answer.headers) is (status == 405)


def metrics(router: Router) -> dict[str, Metric]:
    text = ask(router, "GET", "/metrics").body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def stages(router: Router) -> set[str]:
    return {sample.labels["stage"] for sample in metrics(router)["narwhal_monitor_stage_runs"].samples}


def test_metrics_are_prometheus_text_with_our_names_and_bounded_labels(alone: Router) -> None:
    families = metrics(alone)
    assert families
    assert all(name.startswith("narwhal_") for name in families)
    resident = families["narwhal_resident_requests"].samples
    assert {sample.labels["iid"] for sample in resident} == {"e0", "e1"}
    assert stages(alone) == set(STAGES)


def test_a_served_request_shows_in_every_document(alone: Router) -> None:
    before = alone.state()["served"]
    body = json.dumps({"prompt": "a few words", "max_tokens": 2}).encode()
    assert ask(alone, "POST", "/v1/completions", body).status == 200
    state = alone.state()
    assert state["served"] == before + 1
    assert state["offered"] == sum(state[outcome.value] for outcome in Outcome)
    assert alone.get("/narwhal/handoff")["counters"]["served"] == before + 1


# --- a pair on a store -----------------------------------------------------------------------------


def member(stack: ExitStack, engines: EngineProcess, folder: Path, *options: str) -> Router:
    fleet = fleet_document(engines.engines, controller={"monitor_interval_s": 0.1})
    return stack.enter_context(router_process(folder, fleet, *LEASE, *options))


def test_a_pair_tells_one_story_and_tells_the_handover(engines: EngineProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(running(on("valkey"), tmp_path / "redis"))
        url = ("--redis-url", f"redis://127.0.0.1:{store.port}")
        owner = member(stack, engines, tmp_path / "a", *url, "--router-id", "a")
        standby = member(stack, engines, tmp_path / "b", *url, "--router-id", "b", "--standby")
        eventually(lambda: len(standby.get("/narwhal/cluster")["routers"]) == 2, what="both are known")
        one_story(owner, standby)
        handed_over(owner, standby)


def one_story(owner: Router, standby: Router) -> None:
    active, waiting = owner.get("/ready"), ask(standby, "GET", "/ready")
    assert (active["status"], active["role"]) == ("ready", "active")
    assert (waiting.status, waiting.headers["retry-after"]) == (503, "1")
    body = waiting.document
    assert (body["reason"], body["role"], body["control_ready"]) == ("standby", "standby", False)
    for name in ("epoch", "holder", "owner"):
        assert body[name] == active[name], name
    assert active["owner"] == {"router_id": "a", "url": owner.url}
    assert active["holder"].startswith("a:")
    eventually(lambda: standby.get("/ready")["ready_to_take"], what="the standby could take over")
    assert standby.get("/health")["status"] == "standby"
    assert stages(standby) == {"telemetry"}
    mirrored, own = standby.get("/narwhal/handoff"), owner.get("/narwhal/handoff")
    assert mirrored["mirrored"] is True
    assert mirrored["mirror_age_s"] >= 0
    assert (mirrored["run"], mirrored["epoch"]) == (own["run"], own["epoch"])
    refused = ask(standby, "POST", "/v1/completions", b'{"prompt": "x"}')
    assert (refused.status, refused.document["error"]["code"]) == (503, "standby")


def handed_over(owner: Router, standby: Router) -> None:
    """The owner drains a stream and says so, while the standby serves under a higher epoch."""
    epoch = owner.get("/ready")["epoch"]
    served = owner.state()["served"]
    connection = connect(owner)
    body = json.dumps({"prompt": "x", "max_tokens": 150, "stream": True})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    stream = connection.getresponse()
    owner.process.send(signal.SIGTERM)
    eventually(lambda: owner.get("/ready")["reason"] == "shutting down", what="the owner closes")
    eventually(standby.ready, what="the standby serves")
    taken = standby.get("/ready")
    assert (taken["role"], taken["owner"]["router_id"]) == ("active", "b")
    assert taken["epoch"] > epoch
    assert b"[DONE]" in stream.read(), "a running stream ends as it should have"
    connection.close()
    assert owner.process.ended() == 0
    eventually(lambda: standby.state()["served"] == served + 1, what="the last request was counted")
    changes = standby.get("/narwhal/cluster")["ownership_changes"]
    assert (changes[-1]["kind"], changes[-1]["router_id"], changes[-1]["epoch"]) == (
        "acquired",
        "b",
        taken["epoch"],
    )
