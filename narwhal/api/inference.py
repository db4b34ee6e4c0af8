"""Data routes: the two generating ones and the model list (http-api.md section 1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from narwhal.api.client_stream import TransportStream, client_stream
from narwhal.api.envelope import Answer, envelope, json_answer
from narwhal.api.errors import INVALID, answer
from narwhal.api.inbound import BodyLimits, HttpInbound
from narwhal.errors import InvariantViolation, NarwhalError, NotOwner, TooLarge
from narwhal.model.plain_text import shown
from narwhal.model.request import Api
from narwhal.ports import RequestHandler

log = logging.getLogger("narwhal.api")

MODELS = "/v1/models"
_GENERATING = frozenset(api.value for api in Api)


class ServedModel(Protocol):
    """The model as clients list it. `max_model_len` in tokens, None until an engine has told it."""

    @property
    def model(self) -> str: ...

    @property
    def max_model_len(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class DataViews:
    """What the data routes work with.

    `arrival` gives the instant of a request on Clock.now and Clock.wall; `created` is Unix seconds, the
    same on every model object of this process.
    """

    handler: RequestHandler
    limits: BodyLimits
    arrival: Callable[[], tuple[float, float]]
    card: ServedModel
    created: int


def data_routes(views: DataViews) -> Sequence[BaseRoute]:
    """For `build_app`, exact paths. `DataFirst` takes the generating ones on a shorter way."""
    generate = Generate(views)
    return [
        *(Route(api.value, generate, methods=["POST"]) for api in Api),
        Route(MODELS, ModelList(views), methods=["GET"]),
        Route(MODELS + "/{model:path}", OneModel(views), methods=["GET"]),
    ]


class DataFirst:
    """An ASGI application in front of `app`, and an `api.cycle.Generates`: generating requests go straight
    to their handler.

    They are nearly all the traffic, and a walk through middleware and routes costs as much as placement.
    """

    def __init__(self, views: DataViews, app: ASGIApp) -> None:
        generate = Generate(views)
        self._over_asgi = generate
        self._app = app
        self.generate = generate.generate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in _GENERATING and scope["method"] == "POST":
            await self._over_asgi(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Generate:
    """`POST /v1/completions` and `/v1/chat/completions`: the outermost handler of a request."""

    def __init__(self, views: DataViews) -> None:
        self._handler = views.handler
        self._limits = views.limits
        self._arrival = views.arrival

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Over plain ASGI, on any server."""
        async with client_stream(scope, receive, send) as stream:
            await self._serve(
                HttpInbound(scope, receive, stream=stream, limits=self._limits, arrived=self._arrival())
            )

    async def generate(self, scope: Scope, receive: Receive, *, stream: TransportStream) -> None:
        """For our own protocol."""
        inbound = HttpInbound(scope, receive, stream=stream, limits=self._limits, arrived=self._arrival())
        inbound.whole = stream.whole_body()
        await self._serve(inbound)
        stream.leave()

    async def _serve(self, inbound: HttpInbound) -> None:
        try:
            await self._handler.serve(inbound)
        except asyncio.CancelledError:
            # The client has gone, or the server ends what outlived `graceful_timeout_s`.
            if not (inbound.stream.gone or inbound.left):
                await _tell(NotOwner("this router is shutting down"), inbound)
        except InvariantViolation:
            log.critical("a bug was met: the process ends", exc_info=True)
            asyncio.get_running_loop().call_soon(_crash)
        except Exception as error:
            await _tell(error, inbound)


def _crash() -> None:
    """A router in an unknown state must not serve. From a callback this ends the loop: the server around
    a request's task would take the exception for a failed request."""
    raise SystemExit(1)


async def _tell(error: Exception, inbound: HttpInbound) -> None:
    """The error as a response or, once the stream has started, as its last event."""
    if not isinstance(error, NarwhalError):
        log.error("request %s failed unexpectedly", inbound.rid, exc_info=error)
    told, stream = answer(error, inbound.rid), inbound.stream
    if stream.started:
        stream.finish(told.event())
        return
    body = told.body()
    headers = [*told.headers(inbound.rid), ("content-length", str(len(body)))]
    more_to_come = isinstance(error, TooLarge)
    stream.start(told.status, headers, data=body, last=not more_to_come)
    if more_to_come:
        await inbound.drop_rest()
        stream.finish()


class ModelList:
    """`GET /v1/models`: every router answers, whatever its role."""

    def __init__(self, views: DataViews) -> None:
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = {"object": "list", "data": [_model_object(self._views)]}
        await json_answer(200, document)(scope, receive, send)


class OneModel:
    """`GET /v1/models/{id}`."""

    def __init__(self, views: DataViews) -> None:
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = scope["path_params"]["model"]
        if not named:
            raise HTTPException(404)  # A trailing slash is another path.
        await self._answer(named)(scope, receive, send)

    def _answer(self, named: str) -> Answer:
        if named == self._views.card.model:
            return json_answer(200, _model_object(self._views))
        message = f"The model `{shown(named)}` does not exist."
        return Answer(404, envelope(message, INVALID, param="model", code="model_not_found"))


def _model_object(views: DataViews) -> dict[str, object]:
    return {
        "id": views.card.model,
        "object": "model",
        "created": views.created,
        "owned_by": "narwhal",
        "max_model_len": views.card.max_model_len,
    }
