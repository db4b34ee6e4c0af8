"""engine/whole_stream.py through the dialect: when a decode leg that was collected whole has ended well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from narwhal.engine.dialect import make_dialect
from narwhal.errors import EngineRefused, StreamBroken
from narwhal.ports import EngineReply

VLLM = make_dialect("vllm", "nixl")
DONE = b"data: [DONE]\n\n"


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def token(reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": "a", "finish_reason": reason}]})


def read(body: bytes, status: int = 200, kind: str = "text/event-stream; charset=utf-8") -> None:
    VLLM.read_decode(EngineReply(status, {"content-type": kind}, body), "d0")


def broken(body: bytes, **how: Any) -> str:
    with pytest.raises(StreamBroken) as caught:
        read(body, **how)
    assert caught.value.iid == "d0"
    return caught.value.kind


def test_output_a_finish_reason_and_the_marker_are_a_good_end() -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    read(token() + token("length") + usage + DONE)
    read(token("stop") + DONE)
    read((token() + token("stop") + DONE).replace(b"\n", b"\r\n"))


def test_events_of_chats_are_no_completion() -> None:
    says = event({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    assert broken(says + DONE) == "malformed"


def test_no_end_is_as_good_as_none() -> None:
    assert broken(b"") == "early_end"
    assert broken(token()) == "early_end"
    assert broken(token("length")) == "early_end"
    assert broken(token() + DONE) == "early_end"
    assert broken(token("") + DONE) == "early_end"
    assert broken(DONE) == "early_end"


def test_a_cut_text_and_an_error_object_are_no_success() -> None:
    assert broken(token() + token("abort") + DONE) == "bad_finish"
    assert broken(token("error") + DONE) == "bad_finish"
    assert broken(event({"error": {"message": "no", "code": 500}}) + DONE) == "error_object"


def test_what_is_no_stream_is_malformed() -> None:
    assert broken(b'{"choices": []}', kind="application/json") == "malformed"
    assert broken(b"data: {nonsense\n\n" + DONE) == "malformed"
    assert broken(event({"choices": [{"index": 0, "text": None}]}) + token("stop") + DONE) == "malformed"


def test_another_status_is_the_engines_refusal() -> None:
    with pytest.raises(EngineRefused) as caught:
        read(b'{"error": {"message": "no key"}}', status=401, kind="application/json")
    assert caught.value.status == 401
