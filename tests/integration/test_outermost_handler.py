"""What the outermost handler makes of exceptions, seen through plain ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from narwhal.api.inbound import BodyLimits
from narwhal.api.inference import DataFirst, DataViews
from narwhal.errors import InvariantViolation, Overloaded
from narwhal.ports import Inbound
from tests.support.serving import Card


@dataclass
class Raises:
    """A request handler that always ends the same way."""

    error: BaseException
    stream_first: bool = False

    async def serve(self, inbound: Inbound) -> None:
        if self.stream_first:
            inbound.stream.start(200, [("content-type", "text/event-stream")], data=b"data: {}\n\n")
        raise self.error


async def exchange(handler: Raises) -> tuple[int, Mapping[str, str], bytes]:
    """POSTs an empty object through the application in plain ASGI."""
    views = DataViews(handler, BodyLimits("tiny", 1000), lambda: (0.0, 0.0), Card("tiny"), created=0)
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "extensions": {}}
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        told.append(dict(message))

    async def nowhere(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("generating requests have their own way")

    await DataFirst(views, nowhere)(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in told[0]["headers"]}
    return told[0]["status"], headers, b"".join(part["body"] for part in told[1:])


async def test_an_error_of_ours_is_a_response_by_the_map():
    status, headers, body = await exchange(Raises(Overloaded("full")))
    assert (status, headers["retry-after"]) == (429, "1")
    assert int(headers["content-length"]) == len(body)
    assert json.loads(body)["error"]["message"] == "full"


async def test_the_unexpected_is_a_500_that_names_the_request(caplog):
    status, headers, body = await exchange(Raises(KeyError("inner detail")))
    assert status == 500
    assert headers["x-request-id"] in json.loads(body)["error"]["message"]
    assert b"inner detail" not in body
    assert headers["x-request-id"] in caplog.text


async def test_after_the_stream_has_started_the_error_is_its_last_event():
    status, _, body = await exchange(Raises(Overloaded("full"), stream_first=True))
    assert status == 200
    assert body.endswith(b"\n\n")
    assert b'data: {"error":{"message":"full"' in body


def test_a_broken_invariant_ends_the_process(caplog):
    with pytest.raises(SystemExit) as ended:
        asyncio.run(asyncio.wait_for(_serve_forever(), 60))
    assert ended.value.code == 1
    assert "the process ends" in caplog.text


async def _serve_forever() -> None:
    await exchange_quietly()
    await asyncio.Event().wait()


async def exchange_quietly() -> None:
    """Nothing is answered: the process is about to go."""
    with pytest.raises(IndexError):
        await exchange(Raises(InvariantViolation("counts differ")))
