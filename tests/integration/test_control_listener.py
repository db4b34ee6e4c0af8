"""Who may POST below /narwhal/, and where: every such route of a real router, on both listeners."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from narwhal.api.actions import action_routes
from tests.integration.test_operator_app import Orders
from tests.support.engines import engine_process
from tests.support.processes import eventually
from tests.support.redis import on, running
from tests.support.router import Router, fleet_document, router_process

KEY = "opensesame-opensesame"
POSTS = sorted(route.path for route in action_routes(Orders().actions) if "POST" in (route.methods or ()))
GETS = ("/narwhal/state", "/narwhal/handoff", "/narwhal/cluster", "/narwhal/lifecycle", "/metrics")
OF_CLIENTS = ("/ready", "/health", "/v1/models")
_CONTROL = re.compile(r", control on (http://\S+)")

Headers = list[tuple[str, str]]
BASIC = base64.b64encode(f"narwhal:{KEY}".encode()).decode()
REFUSED: dict[str, Headers] = {
    "no key": [],
    "wrong key": [("authorization", "Bearer sesameopen-sesameopen")],
    "a part of the key": [("authorization", f"Bearer {KEY[:-1]}")],
    "the key and more": [("authorization", f"Bearer {KEY}x")],
    "empty key": [("authorization", "Bearer ")],
    "no scheme": [("authorization", KEY)],
    "basic": [("authorization", f"Basic {BASIC}")],
    "other header": [("x-api-key", KEY), ("x-control-key", KEY), ("proxy-authorization", f"Bearer {KEY}")],
    "cookie": [("cookie", f"authorization=Bearer {KEY}")],
    "two headers": [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer other")],
    "a list": [("authorization", f"Bearer other, Bearer {KEY}")],
}
TAKEN: dict[str, Headers] = {
    "right key": [("authorization", f"Bearer {KEY}")],
    "scheme in other letters": [("Authorization", f"bearer {KEY}")],
    "spaces around": [("authorization", f"  Bearer   {KEY} ")],
}


@dataclass(frozen=True, slots=True)
class Scene:
    """`owner` and `standby`, each with a control listener of its own and the key."""

    owner: Router
    standby: Router

    def control(self, router: Router) -> str:
        (url,) = [match[1] for line in router.process.lines if (match := _CONTROL.search(line))]
        return url


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("control")
    with ExitStack() as stack:
        redis = stack.enter_context(running(on("valkey"), folder))
        engines = stack.enter_context(engine_process(2, "--prefill", "0"))
        fleet = fleet_document(engines.engines, controller={"monitor_interval_s": 0.2})
        words = ("--redis-url", f"redis://127.0.0.1:{redis.port}", "--control-port", "0")

        def router(name: str, *more: str) -> Router:
            given = (*words, "--control-key-env", "THE_KEY", "--router-id", name, "--failsafe", "a,b", *more)
            return stack.enter_context(router_process(folder / name, fleet, *given, env={"THE_KEY": KEY}))

        pair = Scene(router("a"), router("b", "--standby"))
        eventually(lambda: pair.standby.get("/ready").get("ready_to_take") is True, what="a ready standby")
        yield pair


def ask(
    url: str, method: str, path: str, *, headers: Headers | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30.0)
    connection.putrequest(method, path)
    for name, value in [*(headers or []), ("content-length", str(len(body)))]:
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    told = answer.status, answer.read()
    connection.close()
    return told


def document(url: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(url, "GET", path)[1])
    return found


def test_the_table_has_every_order_there_is() -> None:
    assert POSTS == [
        "/narwhal/cluster/pledge",
        "/narwhal/lifecycle/drain",
        "/narwhal/lifecycle/readmit",
        "/narwhal/lifecycle/yield",
    ]


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("path", POSTS)
def test_without_the_key_an_order_is_401_on_both_listeners_whatever_it_says(
    scene: Scene, path: str, headers: Headers
) -> None:
    for url in (scene.control(scene.owner), scene.owner.url):
        for body in (b"not JSON", b'{"engines": ["e1"]}'):
            status, told = ask(url, "POST", path, headers=headers, body=body)
            assert status == 401
            assert KEY.encode() not in told


@pytest.mark.parametrize("path", POSTS)
def test_a_key_in_the_query_is_no_key(scene: Scene, path: str) -> None:
    for name in ("key", "access_token", "authorization"):
        assert ask(scene.control(scene.owner), "POST", f"{path}?{name}={KEY}")[0] == 401


@pytest.mark.parametrize("headers", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("path", POSTS)
def test_with_the_key_an_order_is_read_on_the_control_listener_and_is_no_route_of_clients(
    scene: Scene, path: str, headers: Headers
) -> None:
    """What is no JSON is 400: it was read. Nothing is ordered."""
    assert ask(scene.control(scene.owner), "POST", path, headers=headers, body=b"not JSON")[0] == 400
    assert ask(scene.owner.url, "POST", path, headers=headers, body=b"not JSON")[0] == 404


def test_whoever_sends_far_too_much_sees_the_answer(scene: Scene) -> None:
    """More than socket buffers hold: a connection that is closed over what nobody read is reset."""
    for path in POSTS:
        told = ask(
            scene.control(scene.owner), "POST", path, headers=TAKEN["right key"], body=b" " * 6_000_000
        )
        assert told[0] == 413


def test_documents_and_metrics_are_on_the_control_listener_only_and_need_no_key(scene: Scene) -> None:
    control = scene.control(scene.owner)
    for path in GETS:
        assert ask(control, "GET", path)[0] == 200
        assert ask(scene.owner.url, "GET", path)[0] == 404
    for path in OF_CLIENTS:
        assert ask(scene.owner.url, "GET", path)[0] == 200
        assert ask(control, "GET", path)[0] == 404
    assert ask(control, "POST", "/v1/completions", body=b"{}")[0] == 404


def test_a_standby_names_the_owners_control_listener_for_orders_and_its_url_for_clients(scene: Scene) -> None:
    right = TAKEN["right key"]
    order = b'{"engines": ["e1"]}'
    status, told = ask(
        scene.control(scene.standby), "POST", "/narwhal/lifecycle/drain", headers=right, body=order
    )
    assert status == 503
    assert json.loads(told)["owner"] == {"router_id": "a", "url": scene.control(scene.owner)}
    assert scene.standby.get("/ready")["owner"] == {"router_id": "a", "url": scene.owner.url}


def test_routers_tell_each_other_where_they_take_orders(scene: Scene) -> None:
    def told() -> dict[str, str]:
        rows = document(scene.control(scene.owner), "/narwhal/cluster")["routers"]
        return {row["router_id"]: row["control_url"] for row in rows}

    both = {"a": scene.control(scene.owner), "b": scene.control(scene.standby)}
    eventually(lambda: told() == both, what="both are known")
