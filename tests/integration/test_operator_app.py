"""The operator surface in process: real application, real requests, values as the views give them."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import httpx
import pytest

from narwhal.api.actions import OperatorActions
from narwhal.api.app import build_app
from narwhal.api.operator import OperatorViews
from narwhal.model.handover import PledgeAnswer, PledgeQuestion, YieldAnswer, YieldOutcome
from narwhal.model.maintenance import DrainOrder, OrderAnswer, OrderOutcome
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

GET_ROUTES = [
    "/ready",
    "/health",
    "/metrics",
    "/narwhal/state",
    "/narwhal/handoff",
    "/narwhal/cluster",
    "/narwhal/lifecycle",
]


QUESTION = {"voter": "b:1", "holder": "a:1:00ff", "epoch": 7, "ttl_s": 5.0, "nonce": "n"}


class Orders:
    """What was ordered, and the answer to a yield."""

    def __init__(self, outcome: YieldOutcome = YieldOutcome.DONE, error: str = "") -> None:
        self.answer = YieldAnswer(outcome, error)
        self.yields: list[str | None] = []
        self.questions: list[PledgeQuestion] = []
        self.told = OrderAnswer(OrderOutcome.DONE)
        self.orders: list[tuple[str, DrainOrder]] = []

    async def yield_lease(self, to: str | None) -> YieldAnswer:
        self.yields.append(to)
        return self.answer

    async def pledge(self, question: PledgeQuestion) -> PledgeAnswer:
        self.questions.append(question)
        return PledgeAnswer(True, "", question.nonce)

    async def drain(self, order: DrainOrder) -> OrderAnswer:
        self.orders.append(("drain", order))
        return self.told

    async def readmit(self, order: DrainOrder) -> OrderAnswer:
        self.orders.append(("readmit", order))
        return self.told

    @property
    def actions(self) -> OperatorActions:
        return OperatorActions(
            yield_lease=self.yield_lease,
            pledge=self.pledge,
            drain=self.drain,
            readmit=self.readmit,
            lifecycle=lambda: views.LIFECYCLE,
            cluster=lambda: views.CLUSTER,
        )


def order(
    path: str, body: Any, *, orders: Orders, key: str = "", client: str = "127.0.0.1", **headers: str
) -> httpx.Response:
    """A POST; `body` as it is if it is bytes, else as JSON."""

    async def once() -> httpx.Response:
        app = build_app([], VIEWS, actions=orders.actions, control_key=key)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await http.post(path, content=content, headers=headers)

    return asyncio.run(once())


def ask(method: str, path: str, *, given: OperatorViews = VIEWS, client: str = "127.0.0.1") -> httpx.Response:
    async def once() -> httpx.Response:
        app = build_app([], given, actions=Orders().actions)
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


YIELD, PLEDGE = "/narwhal/lifecycle/yield", "/narwhal/cluster/pledge"


@pytest.mark.parametrize("authorization", ["Bearer kéy", "bearer   kéy ", "BEARER kéy"])
def test_with_a_key_control_is_taken_from_anywhere(authorization: str) -> None:
    sent = {"authorization": authorization.encode()}
    orders = Orders()
    response = order(YIELD, {"to": None}, orders=orders, key="kéy", client="10.1.2.3", **sent)  # type: ignore[arg-type]
    assert response.status_code == 200
    assert orders.yields == [None]


@pytest.mark.parametrize("path", [YIELD, PLEDGE, "/narwhal/nowhere"])
@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer kex", "Bearer keyy", "Bearer k e y", "Basic key", "key"]
)
def test_without_the_key_control_is_401_before_anything_else_also_from_this_host(
    path: str, sent: str
) -> None:
    headers = {"authorization": sent} if sent else {}
    orders = Orders()
    response = order(path, b"not JSON", orders=orders, key="key", **headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert error_of(response)["type"] == "invalid_request_error"
    assert orders.yields == []


def test_reading_needs_no_key() -> None:
    assert ask("GET", "/narwhal/lifecycle", client="10.1.2.3").json() == {
        "schema": "narwhal.lifecycle",
        "schema_version": 1,
        "router": {"controls_fleet": True, "role": "active", "epoch": 7},
        "engine_restart_policy": "individual",
        "process_starts": {"d0": 12.5},
        "engines": {
            "d0": {
                "state": "active", "draining": False, "accepts_new": True, "ready_to_stop": False,
                "resident": {"prefill": 0, "decode": 1}, "deadline_at": None, "deadline_in_s": None,
                "wave_id": None, "old_process_start": None, "new_process_start": None, "checks": [],
                "error": "",
            },
            "p0": ask("GET", "/narwhal/lifecycle").json()["engines"]["p0"],
        },
        "wave": {"id": None, "active": False, "readiness_withdrawn": False, "ready_to_stop": False},
        "carried": {"x0": {"state": "drained", "ejected": False, "held": False}},
        "error": "",
    }  # fmt: skip


def test_a_yield_answers_with_the_cluster_document() -> None:
    orders = Orders()
    response = order(YIELD, {"to": "b:1"}, orders=orders)
    assert (response.status_code, response.json()["schema"]) == (200, "narwhal.cluster")
    assert orders.yields == ["b:1"]
    assert order(YIELD, {}, orders=orders).status_code == 200
    assert orders.yields == ["b:1", None]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((YIELD, body) for body in (b"", b"[]", b"{", {"to": 1}, {"to": ["b:1"]}, {"to": None, "too": 1})),
        *((PLEDGE, QUESTION | wrong) for wrong in (
            {"voter": ""}, {"voter": None}, {"holder": 7}, {"epoch": 0}, {"epoch": True}, {"epoch": 7.0},
            {"epoch": 2**53}, {"ttl_s": 0}, {"ttl_s": "5"}, {"ttl_s": True}, {"ttl_s": 1e9}, {"nonce": ""},
            {"nonce": "n" * 257}, {"extra": 1},
        )),
        (PLEDGE, {}),
    ],
)  # fmt: skip
def test_a_bad_order_is_400_and_nothing_is_done(path: str, body: Any) -> None:
    orders = Orders()
    response = order(path, body, orders=orders)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"
    assert (orders.yields, orders.questions) == ([], [])


def test_a_large_order_is_413() -> None:
    response = order(YIELD, b" " * 70_000, orders=Orders())
    assert (response.status_code, response.headers["connection"]) == (413, "close")


def test_a_refused_yield_is_409_with_the_lifecycle_document_and_the_error_first() -> None:
    response = order(YIELD, {"to": "x"}, orders=Orders(YieldOutcome.REFUSED, "no router x is known"))
    assert response.status_code == 409
    assert next(iter(response.json())) == "error"
    assert response.json()["error"] == "no router x is known"
    assert response.json()["schema"] == "narwhal.lifecycle"
    assert "owner" not in response.json()


def test_a_yield_elsewhere_is_503_and_names_the_owner() -> None:
    response = order(YIELD, {"to": None}, orders=Orders(YieldOutcome.NOT_OWNER, "this router stands by"))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert list(response.json())[:2] == ["error", "owner"]
    assert response.json()["owner"] == {"router_id": "a:1", "url": "http://a:1"}
    assert response.json()["router"] == {"controls_fleet": True, "role": "active", "epoch": 7}


DRAIN, READMIT = "/narwhal/lifecycle/drain", "/narwhal/lifecycle/readmit"


def test_a_drain_is_ordered_with_its_deadline_and_answered_with_the_lifecycle_document() -> None:
    orders = Orders()
    response = order(DRAIN, {"engines": ["e0"], "deadline_s": 5}, orders=orders)
    assert (response.status_code, response.json()["schema"]) == (200, "narwhal.lifecycle")
    assert (response.json()["error"], response.json()["durable"]) == ("", True)
    assert orders.orders == [("drain", DrainOrder(("e0",), deadline_s=5.0))]


def test_a_drain_has_300_seconds_unless_it_says_otherwise() -> None:
    orders = Orders()
    order(DRAIN, {"engines": ["e0"]}, orders=orders)
    order(DRAIN, {"wave": True}, orders=orders)
    order(READMIT, {"engines": ["e0"]}, orders=orders)
    assert [told for _, told in orders.orders] == [
        DrainOrder(("e0",), deadline_s=300.0),
        DrainOrder((), wave=True, deadline_s=300.0),
        DrainOrder(("e0",), deadline_s=300.0),
    ]


def test_a_deadline_of_any_size_reaches_who_refuses_it() -> None:
    for digits in (400, 5000):
        orders = Orders()
        order(DRAIN, b'{"wave": true, "deadline_s": ' + b"1" * digits + b"}", orders=orders)
        assert orders.orders == [("drain", DrainOrder((), wave=True, deadline_s=math.inf))]


def test_a_drain_that_is_not_durable_says_so_and_why() -> None:
    orders = Orders()
    orders.told = OrderAnswer(OrderOutcome.DONE, not_durable="the checkpoint could not be written: disk full")
    body = order(DRAIN, {"engines": ["e0"]}, orders=orders).json()
    assert (body["durable"], body["durable_reason"]) == (
        False,
        "the checkpoint could not be written: disk full",
    )


@pytest.mark.parametrize(
    ("outcome", "status", "first"),
    [(OrderOutcome.REFUSED, 409, ["error"]), (OrderOutcome.UNAVAILABLE, 503, ["error", "owner"])],
)
@pytest.mark.parametrize("path", [DRAIN, READMIT])
def test_an_order_that_is_not_done_has_the_document_and_the_error_first(
    path: str, outcome: OrderOutcome, status: int, first: list[str]
) -> None:
    orders = Orders()
    orders.told = OrderAnswer(outcome, "e0 stays out")
    response = order(path, {"engines": ["e0"]}, orders=orders)
    assert response.status_code == status
    assert list(response.json())[: len(first)] == first
    assert response.json()["error"] == "e0 stays out"
    assert response.json()["engines"]["p0"]["state"] == "drained"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (DRAIN, b"no json"),
        (DRAIN, {}),
        (DRAIN, {"engines": "e0"}),
        (DRAIN, {"engines": [1]}),
        (DRAIN, b'{"engines": [' + b"1" * 5000 + b"]}"),
        (DRAIN, {"engines": ["e0"], "wave": True}),
        (DRAIN, {"engines": ["e0"], "wave": 1}),
        (DRAIN, {"engines": ["e0"], "deadline_s": "5"}),
        (DRAIN, {"wave": True, "engines": None}),
        (READMIT, {"engines": None}),
        (DRAIN, {"engines": ["e0"], "deadline_s": True}),
        (DRAIN, {"engines": ["e0"], "deadline": 5}),
        (READMIT, {"engines": ["e0"], "deadline_s": 5}),
    ],
)
def test_an_order_of_the_wrong_shape_is_400_with_the_envelope_and_reaches_nobody(
    path: str, body: Any
) -> None:
    orders = Orders()
    response = order(path, body, orders=orders)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"
    assert orders.orders == []


def test_orders_of_others_are_refused_before_their_body_is_looked_at() -> None:
    assert order(DRAIN, b"no json", orders=Orders(), client="10.1.2.3").status_code == 403
    assert order(DRAIN, b"no json", orders=Orders(), key="secret").status_code == 401


def test_an_engine_that_is_drained_shows_its_record() -> None:
    body = order(DRAIN, {"engines": ["e0"]}, orders=Orders()).json()
    assert body["engines"]["p0"] == {
        "state": "drained",
        "draining": True,
        "accepts_new": False,
        "ready_to_stop": True,
        "deadline_at": 1700000300.0,
        "deadline_in_s": 200.0,
        "wave_id": None,
        "old_process_start": 12.5,
        "new_process_start": None,
        "checks": [],
        "error": "",
        "resident": {"prefill": 0, "decode": 0},
    }
    assert (body["engines"]["d0"]["state"], body["engines"]["d0"]["accepts_new"]) == ("active", True)


def test_a_pledge_is_asked_and_told() -> None:
    orders = Orders()
    response = order(PLEDGE, QUESTION, orders=orders)
    assert (response.status_code, response.json()) == (200, {"pledged": True, "reason": "", "nonce": "n"})
    assert orders.questions == [PledgeQuestion("b:1", "a:1:00ff", 7, ttl_s=5.0, nonce="n")]


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
