"""The applications of the listeners: their routes, and one envelope for what no route takes."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from narwhal.api.actions import OperatorActions, action_routes
from narwhal.api.envelope import envelope, new_request_id
from narwhal.api.errors import INVALID, answer
from narwhal.api.health import health_routes
from narwhal.api.operator import ControlRule, OperatorViews, operator_routes
from narwhal.model.plain_text import shown


def build_app(
    data_routes: Sequence[BaseRoute],
    views: OperatorViews,
    *,
    actions: OperatorActions | None,
    control_key: str = "",
) -> Starlette:
    """`data_routes` are those of `api/inference.py`. Paths are exact: a trailing slash is another path.

    `control_key` is what every POST below /narwhal/ must bring; "" takes them from this host only. `actions`
    is None where the operator routes have a listener of their own (`build_control_app`).
    """
    routes = [*data_routes, *health_routes(views.readiness, views.health, heard=views.heard)]
    if actions is not None:
        routes += _control_routes(views, actions)
    return _app(routes, control_key)


def build_control_app(views: OperatorViews, actions: OperatorActions, *, control_key: str = "") -> Starlette:
    """The application of the control listener: operator routes and /metrics, nothing else."""
    return _app(_control_routes(views, actions), control_key)


def _control_routes(views: OperatorViews, actions: OperatorActions) -> list[BaseRoute]:
    return [*operator_routes(views), *action_routes(actions)]


def _app(routes: Sequence[BaseRoute], control_key: str) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[Middleware(ControlRule, key=control_key)],
        exception_handlers={HTTPException: _no_route, Exception: _unexpected},
    )
    app.router.redirect_slashes = False
    return app


def _no_route(request: Request, error: Exception) -> Response:
    """404 and 405, which the router of routes raises; a HEAD gets no body from the server."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = shown(request.scope["path"])
    messages = {404: f"there is no {path} here", 405: f"{request.method} is not allowed on {path}"}
    message = messages.get(status, "the request cannot be served")
    headers = dict(getattr(error, "headers", None) or {})
    return _response(status, envelope(message, INVALID), headers=headers)


def _unexpected(request: Request, error: Exception) -> Response:
    """The details are in the log (starlette raises the error on), the request ID leads there."""
    rid = new_request_id()
    told = answer(error, rid)
    return _response(told.status, told.body(), headers={"x-request-id": rid})


def _response(status: int, body: bytes, *, headers: dict[str, str]) -> Response:
    headers.setdefault("x-request-id", new_request_id())
    return Response(body, status, headers, media_type="application/json")
