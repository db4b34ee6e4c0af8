"""What may be asked of a router by POST below /narwhal/ (http-api.md sections 5 and 6).

Checked in this order: who asks (`ControlRule`), 400, 503 not the owner, 409, then the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from narwhal.api.documents import cluster_document, lifecycle_document
from narwhal.api.envelope import Answer, json_answer
from narwhal.api.errors import answer
from narwhal.api.health import RETRY_AFTER, Produced
from narwhal.api.inbound import DROP_S
from narwhal.api.json_body import parse_object
from narwhal.errors import BadRequest, RequestError, TooLarge
from narwhal.model.cluster_view import ClusterStatus
from narwhal.model.handover import LifecycleView, PledgeAnswer, PledgeQuestion, YieldAnswer, YieldOutcome
from narwhal.model.maintenance import DEADLINE_S, DrainOrder, OrderAnswer, OrderOutcome
from narwhal.model.plain_text import shown
from narwhal.model.wire_json import is_huge_integer

BODY_BYTES = 64 * 1024
"""Orders are small."""
LONGEST_PLEDGE_S = 3600.0
EPOCHS = 2**53


@dataclass(frozen=True, slots=True)
class OperatorActions:
    """What runtime lets others order. `yield_lease` takes the preferred successor's ID, None for any."""

    yield_lease: Callable[[str | None], Awaitable[YieldAnswer]]
    pledge: Callable[[PledgeQuestion], Awaitable[PledgeAnswer]]
    drain: Callable[[DrainOrder], Awaitable[OrderAnswer]]
    readmit: Callable[[DrainOrder], Awaitable[OrderAnswer]]
    lifecycle: Callable[[], LifecycleView]
    cluster: Callable[[], ClusterStatus]


def action_routes(actions: OperatorActions) -> list[Route]:
    def lifecycle() -> Answer:
        return json_answer(200, lifecycle_document(actions.lifecycle()))

    async def yield_lease(body: Mapping[str, Any]) -> Answer:
        told = await actions.yield_lease(_successor(body))
        if told.outcome is YieldOutcome.DONE:
            return json_answer(200, cluster_document(actions.cluster()))
        if told.outcome is YieldOutcome.REFUSED:
            return refusal(409, told.error, view=actions.lifecycle())
        return refusal(503, told.error, view=actions.lifecycle())

    async def pledge(body: Mapping[str, Any]) -> Answer:
        return json_answer(200, asdict(await actions.pledge(_question(body))))

    async def drain(body: Mapping[str, Any]) -> Answer:
        _known(body, {"engines", "wave", "deadline_s"})
        return _ordered(await actions.drain(_order(body)), actions.lifecycle())

    async def readmit(body: Mapping[str, Any]) -> Answer:
        _known(body, {"engines", "wave"})
        return _ordered(await actions.readmit(_order(body)), actions.lifecycle())

    return [
        Route("/narwhal/lifecycle/drain", Ordered(drain), methods=["POST"]),
        Route("/narwhal/lifecycle/readmit", Ordered(readmit), methods=["POST"]),
        Route("/narwhal/lifecycle", Produced(lifecycle), methods=["GET"]),
        Route("/narwhal/lifecycle/yield", Ordered(yield_lease), methods=["POST"]),
        Route("/narwhal/cluster/pledge", Ordered(pledge), methods=["POST"]),
    ]


def _ordered(told: OrderAnswer, view: LifecycleView) -> Answer:
    """200 tells also where what was done could be lost with this router."""
    if told.outcome is OrderOutcome.DONE:
        kept = {"durable": not told.not_durable, "durable_reason": told.not_durable}
        return json_answer(200, {**lifecycle_document(view), **kept})
    return refusal(409 if told.outcome is OrderOutcome.REFUSED else 503, told.error, view=view)


def refusal(status: int, error: str, *, view: LifecycleView) -> Answer:
    """409 or 503: the lifecycle document, `error` first; a 503 tells who owns."""
    document: dict[str, Any] = {"error": error}
    if status == 503:
        owner = view.control.owner
        document["owner"] = None if owner is None else {"router_id": owner.router_id, "url": owner.orders_url}
    document |= {name: value for name, value in lifecycle_document(view).items() if name != "error"}
    return json_answer(status, document, headers=RETRY_AFTER if status == 503 else None)


class Ordered:
    """A POST endpoint with a small JSON object as its body."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[Mapping[str, Any]], Awaitable[Answer]]) -> None:
        self._act = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answered = await self._act(parse_object(await _body(receive)))
        except RequestError as error:
            if isinstance(error, TooLarge):
                await _drop_rest(receive)
            told = answer(error, "")
            answered = Answer(told.status, told.body(), headers={"connection": "close"} if told.close else {})
        await answered(scope, receive, send)


async def _body(receive: Receive) -> bytes:
    """The whole body. Raises TooLarge, or BadRequest where the client left before its end."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the body did not arrive")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > BODY_BYTES:
            raise TooLarge(f"the body is over the limit of {BODY_BYTES} bytes")
    return bytes(body)


async def _drop_rest(receive: Receive) -> None:
    """Reads and drops what is left of a body that is too large, so that its sender sees the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass


def _successor(body: Mapping[str, Any]) -> str | None:
    _known(body, {"to"})
    to = body.get("to")
    if to is not None and not _is_text(to):
        raise BadRequest("to must be a router ID or null", param="to")
    return to


def _order(body: Mapping[str, Any]) -> DrainOrder:
    """Types only: what is unsafe to do is refused by whoever knows the fleet."""
    engines, wave = body.get("engines"), body.get("wave", False)
    if not isinstance(wave, bool):
        raise BadRequest("wave must be true or false", param="wave")
    if wave == ("engines" in body):
        raise BadRequest("name engines or set wave to true, one of them", param="engines")
    named = engines if "engines" in body else []
    if not isinstance(named, list) or not all(map(_is_text, named)):
        raise BadRequest("engines must be a list of engine IDs", param="engines")
    deadline_s = body.get("deadline_s", DEADLINE_S)
    if type(deadline_s) not in (int, float) and not is_huge_integer(deadline_s):
        raise BadRequest("deadline_s must be a number", param="deadline_s")
    return DrainOrder(tuple(dict.fromkeys(named)), wave, _seconds(deadline_s))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not is_huge_integer(value)


def _seconds(number: Any) -> float:
    """JSON knows integers that no float can hold."""
    try:
        return math.inf if is_huge_integer(number) else float(number)
    except OverflowError:
        return math.inf


def _question(body: Mapping[str, Any]) -> PledgeQuestion:
    _known(body, {"voter", "holder", "epoch", "ttl_s", "nonce"})
    texts = {}
    for name in ("voter", "holder", "nonce"):
        text = body.get(name)
        if not isinstance(text, str) or not 0 < len(text) <= 256:
            raise BadRequest(f"{name} must be a nonempty string", param=name)
        texts[name] = text
    epoch, ttl_s = body.get("epoch"), body.get("ttl_s")
    if type(epoch) is not int or not 0 < epoch < EPOCHS:
        raise BadRequest("epoch must be a positive integer", param="epoch")
    if type(ttl_s) not in (int, float) or not 0 < ttl_s <= LONGEST_PLEDGE_S or not math.isfinite(ttl_s):  # type: ignore[operator, arg-type]
        raise BadRequest(f"ttl_s must be seconds above 0, {LONGEST_PLEDGE_S:g} at most", param="ttl_s")
    return PledgeQuestion(epoch=epoch, ttl_s=float(ttl_s), **texts)  # type: ignore[arg-type]


def _known(body: Mapping[str, Any], names: set[str]) -> None:
    if unknown := sorted(set(body) - names):
        raise BadRequest(f"unknown key {shown(unknown[0])}", param=shown(unknown[0]))
