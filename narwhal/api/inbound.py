"""One client request while its body arrives: size limit, idle limit, decoding (http-api.md section 1)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from narwhal.api.decode import decode_request
from narwhal.api.envelope import new_request_id
from narwhal.errors import RequestIncomplete, TooLarge
from narwhal.model.request import Api, InferenceRequest
from narwhal.ports import ClientStream

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY_IDLE_S = 30.0
"""A body may pause this long between two reads."""

DROP_S = 5.0
"""How long the rest of a body that is too large is read and dropped, so that the client sees the answer."""

OFF_LOOP_BYTES = 256 * 1024
"""Bodies above this are parsed in a thread: parsing would hold up every stream on the loop."""

_APIS = {api.value: api for api in Api}
_LONGEST_CLIENT_RID = 256
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[\x21-\x7e]*)?")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`model` is the served one. Seconds as the constants above."""

    model: str
    max_bytes: int
    idle_s: float = BODY_IDLE_S
    drop_s: float = DROP_S


class HttpInbound:
    """Implements `ports.Inbound` over an ASGI scope and its `receive`."""

    __slots__ = (
        "_ended", "_headers", "_limits", "_receive", "api", "arrived_at", "arrived_wall", "client_rid",
        "left", "rid", "stream", "traceparent", "whole",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        *,
        stream: ClientStream,
        limits: BodyLimits,
        arrived: tuple[float, float],
    ) -> None:
        """`scope["path"]` is one of the two generating routes; `arrived` on Clock.now and Clock.wall."""
        self.whole: bytes | None = None
        """The body, where all of it is here already."""
        self.stream = stream
        self.left = False
        self._receive = receive
        self._limits = limits
        self._headers = headers = dict(scope["headers"])
        self._ended = False
        self.api = _APIS[scope["path"]]
        self.rid = new_request_id()
        self.client_rid = _text(headers.get(b"x-request-id"))
        self.arrived_at, self.arrived_wall = arrived
        self.traceparent = _traceparent(headers.get(b"traceparent"))

    async def read(self) -> InferenceRequest:
        """The decoded request.

        Raises TooLarge, RequestIncomplete, BadRequest, UnknownModel; CancelledError when the client left.
        """
        whole = self.whole
        body = await self._body() if whole is None else self._taken(whole)
        if len(body) <= OFF_LOOP_BYTES:
            return decode_request(self, body, model=self._limits.model)
        return await asyncio.to_thread(decode_request, self, body, model=self._limits.model)

    async def drop_rest(self) -> None:
        """Reads and drops what is left of the body, for `drop_s` at most."""
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(self._limits.drop_s):
                while not self._ended:
                    await self._next()

    async def _body(self) -> bytes:
        if _length(self._headers.get(b"content-length")) > self._limits.max_bytes:
            raise self._too_large()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.idle_s) as idle:
                body = await self._next()
                if self._ended:
                    return body
                parts, size = [body], len(body)
                while not self._ended and size <= self._limits.max_bytes:
                    idle.reschedule(loop.time() + self._limits.idle_s)
                    parts.append(await self._next())
                    size += len(parts[-1])
        except TimeoutError:
            raise RequestIncomplete("the request body did not arrive in time") from None
        if size > self._limits.max_bytes:
            raise self._too_large()
        return b"".join(parts)

    def _taken(self, whole: bytes) -> bytes:
        self._ended = True
        if len(whole) > self._limits.max_bytes:
            raise self._too_large()
        return whole

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._ended = self.left = True
            raise asyncio.CancelledError("the client left while its request arrived")
        self._ended = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is over the limit of {self._limits.max_bytes} bytes")


def _length(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() else 0


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")[:_LONGEST_CLIENT_RID]


def _traceparent(value: bytes | None) -> str | None:
    """Passed on only in W3C form: anything else would travel as an unchecked header."""
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    return text if _TRACEPARENT.fullmatch(text) else None
