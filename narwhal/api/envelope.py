"""Our JSON answers on the wire: the error envelope (http-api.md section 1) and whole documents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from narwhal.model.plain_text import to_json

JSON = b"application/json"

RawHeaders = list[tuple[bytes, bytes]]


def new_request_id() -> str:
    """Ours, one per client request: 32 hex digits."""
    return os.urandom(16).hex()


def error_object(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, str | None]:
    """The error with all four keys. `message` is for the client: no addresses, no exception text."""
    return {"message": message, "type": kind, "param": param, "code": code}


def envelope(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """`{"error": {...}}` as it is sent."""
    return orjson.dumps({"error": error_object(message, kind, param=param, code=code)})


class Answer:
    """One whole response as an ASGI application, with a fresh `x-request-id` unless `headers` have one."""

    __slots__ = ("_body", "_headers", "_status")

    def __init__(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._status = status
        self._body = body
        self._headers: RawHeaders = [
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
        ]
        given = {"x-request-id": new_request_id(), **(headers or {})}
        self._headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b"" if scope["method"] == "HEAD" else self._body
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await send({"type": "http.response.body", "body": body})


def json_answer(
    status: int, document: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
) -> Answer:
    """A document of ours. Mappings, sequences, text, numbers, None; anything else is a bug."""
    return Answer(status, to_json(document), headers=headers)
