"""engine/refusal.py: which answer says that our epoch is superseded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from narwhal import fence
from narwhal.engine.refusal import refusal
from narwhal.errors import StaleEpoch
from narwhal.model.lease import MAX_EPOCH
from narwhal.ports import EngineReply


def of(status: int, body: bytes) -> BaseException:
    return refusal(EngineReply(status, {}, body), "e0")


def body(**changes: Any) -> bytes:
    error = {"message": "m", "type": "stale_epoch", "param": None, "code": "stale_epoch", "epoch": 7}
    return json.dumps({"error": {**error, **changes}}).encode()


def test_what_our_own_fence_says_is_understood() -> None:
    error = of(409, fence.refusal(1_795_992_785))
    assert isinstance(error, StaleEpoch)
    assert (error.epoch, error.status, error.iid) == (1_795_992_785, 409, "e0")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, body()),
        (503, body()),
        (409, body(code="conflict")),
        (409, body(code=409)),
        (409, body(epoch=None)),
        (409, body(epoch="7")),
        (409, body(epoch=7.0)),
        (409, body(epoch=True)),
        (409, body(epoch=0)),
        (409, body(epoch=-7)),
        (409, body(epoch=MAX_EPOCH)),
        (409, body(epoch=2**64)),
        (409, body(message=None)),
        (409, b""),
        (409, b"stale_epoch"),
        (409, b"[" * 100_000),
        (409, json.dumps({"error": "stale_epoch"}).encode()),
    ],
)
def test_anything_else_is_an_ordinary_refusal(status: int, text: bytes) -> None:
    error = of(status, text)
    assert not isinstance(error, StaleEpoch)
    assert error.status == status  # type: ignore[attr-defined]
