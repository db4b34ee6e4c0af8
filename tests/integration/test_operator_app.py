"""The operator surface in process: real application, real requests, values as the views give them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from narwhal.api.app import build_app
from narwhal.api.operator import OperatorViews
from narwhal.model.state_view import HandoffView, StateView
from tests.support import views

VIEWS = OperatorViews(
    readiness=lambda: views.READY,
    health=lambda: views.HEALTHY,
    state=lambda: views.STATE,
    cluster=lambda: views.CLUSTER,
    handoff=lambda: views.HANDOFF,
    metrics=lambda: b"narwhal_epoch 7.0\n",
)

GET_ROUTES = ["/ready", "/health", "/metrics", "/narwhal/state", "/narwhal/handoff", "/narwhal/cluster"]


def ask(method: str, path: str, *, given: OperatorViews = VIEWS, client: str = "127.0.0.1") -> httpx.Response:
    async def once() -> httpx.Response:
        app = build_app([], given)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
            return await http.request(method, path)

    return asyncio.run(once())


def error_of(response: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize("path", GET_ROUTES)
def test_every_operator_route_answers_with_a_request_id(path: str) -> None:
    response = ask("GET", path)
    assert response.status_code == 200
    assert len(response.headers["x-request-id"]) == 32


@pytest.mark.parametrize("path", GET_ROUTES)
def test_head_has_the_head_of_get_and_no_body(path: str) -> None:
    get, head = ask("GET", path), ask("HEAD", path)
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(get.content))
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", GET_ROUTES)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_method_that_no_route_takes_is_405_with_what_is_allowed(method: str, path: str) -> None:
    response = ask(method, path)
    assert response.status_code == 405
    assert error_of(response)["type"] == "invalid_request_error"
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/", "/nowhere", "/ready/", "/narwhal/state/", "/narwhal", "/v2/models"])
def test_an_unknown_path_is_404_with_the_envelope_and_no_redirect(path: str) -> None:
    response = ask("GET", path)
    assert response.status_code == 404
    assert path in error_of(response)["message"]


def test_ready_is_200_or_503_with_retry_after() -> None:
    ready = ask("GET", "/ready")
    assert ready.json()["status"] == "ready"
    assert "retry-after" not in ready.headers
    standby = ask("GET", "/ready", given=replace(VIEWS, readiness=lambda: views.STANDING_BY))
    assert (standby.status_code, standby.headers["retry-after"]) == (503, "1")
    assert standby.json()["reason"] == "standby"


def test_health_is_200_whatever_it_says() -> None:
    fenced = replace(views.HEALTHY, status=type(views.HEALTHY.status).FENCED)
    response = ask("GET", "/health", given=replace(VIEWS, health=lambda: fenced))
    assert (response.status_code, response.json()["status"]) == (200, "fenced")


def test_metrics_are_prometheus_text() -> None:
    response = ask("GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.text == "narwhal_epoch 7.0\n"


def test_the_handoff_is_503_until_there_is_one() -> None:
    def nothing() -> HandoffView | None:
        return None

    response = ask("GET", "/narwhal/handoff", given=replace(VIEWS, handoff=nothing))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert error_of(response)["code"] == "standby"


@pytest.mark.parametrize("path", ["/narwhal/state", "/narwhal/lifecycle/drain", "/narwhal/nowhere"])
@pytest.mark.parametrize("client", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "unknown"])
def test_control_from_another_host_is_403_before_anything_else(path: str, client: str) -> None:
    response = ask("POST", path, client=client)
    assert response.status_code == 403
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_control_from_this_host_is_routed(client: str) -> None:
    assert ask("POST", "/narwhal/nowhere", client=client).status_code == 404


def test_reading_from_another_host_is_allowed() -> None:
    assert ask("GET", "/narwhal/state", client="10.1.2.3").status_code == 200


def test_a_bug_behind_a_route_is_500_with_the_request_id_and_no_detail() -> None:
    def broken() -> StateView:
        raise RuntimeError("secret detail")

    response = ask("GET", "/narwhal/state", given=replace(VIEWS, state=broken))
    assert response.status_code == 500
    error = error_of(response)
    assert error["type"] == "internal_error"
    assert response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text
