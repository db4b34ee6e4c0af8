"""The operator's read side: state, handoff and cluster documents, metrics; and who may POST there."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from narwhal.api.documents import cluster_document, handoff_document, state_document
from narwhal.api.envelope import Answer, envelope, json_answer
from narwhal.api.errors import INVALID
from narwhal.api.health import RETRY_AFTER, Produced
from narwhal.model.cluster_view import ClusterStatus
from narwhal.model.control import Health, Readiness
from narwhal.model.state_view import HandoffView, StateView

METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class OperatorViews:
    """The read-side handles that runtime gives. All read memory; None from `handoff`: no document yet.
    `heard` is told which router polls /ready."""

    readiness: Callable[[], Readiness]
    health: Callable[[], Health]
    state: Callable[[], StateView]
    cluster: Callable[[], ClusterStatus]
    handoff: Callable[[], HandoffView | None]
    metrics: Callable[[], bytes]
    heard: Callable[[str], None] = lambda router_id: None


def operator_routes(views: OperatorViews) -> list[Route]:
    def state() -> Answer:
        return json_answer(200, state_document(views.state()))

    def cluster() -> Answer:
        return json_answer(200, cluster_document(views.cluster()))

    def handoff() -> Answer:
        view = views.handoff()
        if view is None:
            message = "this router has no handoff document yet"
            return Answer(503, envelope(message, "standby", code="standby"), headers=RETRY_AFTER)
        return json_answer(200, handoff_document(view))

    def metrics() -> Answer:
        return Answer(200, views.metrics(), content_type=METRICS_TYPE)

    return [
        Route("/narwhal/state", Produced(state), methods=["GET"]),
        Route("/narwhal/handoff", Produced(handoff), methods=["GET"]),
        Route("/narwhal/cluster", Produced(cluster), methods=["GET"]),
        Route("/metrics", Produced(metrics), methods=["GET"]),
    ]


class ControlRule:
    """Who may `POST /narwhal/*`: whoever has the key, without a key this host only.

    401 or 403 before anything else is looked at, also before the route.
    """

    def __init__(self, app: ASGIApp, key: str = "") -> None:
        self._app = app
        self._bearer = f"Bearer {key}".encode() if key else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope) if _is_control(scope) else None
        await (refused or self._app)(scope, receive, send)

    def _refused(self, scope: Scope) -> Answer | None:
        if self._bearer:
            if hmac.compare_digest(_authorization(scope), self._bearer):
                return None
            message = "control routes need the control key: Authorization: Bearer <key>"
            return Answer(401, envelope(message, INVALID), headers={"www-authenticate": "Bearer"})
        if _is_loopback(scope):
            return None
        return Answer(403, envelope("control routes are taken from this host only", INVALID))


def _authorization(scope: Scope) -> bytes:
    """The header's value with its scheme as we write it; b"" unless there is exactly one."""
    found: list[bytes] = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
    scheme, _, rest = found[0].strip().partition(b" ") if len(found) == 1 else (b"", b"", b"")
    return b"Bearer " + rest.strip() if scheme.lower() == b"bearer" else b""


def _is_control(scope: Scope) -> bool:
    path: str = scope.get("path", "")
    return scope.get("method") == "POST" and path.startswith("/narwhal/")


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
