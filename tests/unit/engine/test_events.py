"""engine/events.py: what an event is, by decoding; and that the search in front of it only selects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.engine.events import decode_event, is_plain
from narwhal.ports import EventKind


def sse(document: Any, **dumps: Any) -> bytes:
    separators = dumps.pop("separators", (",", ":"))
    return (
        b"data: "
        + json.dumps(document, ensure_ascii=False, separators=separators, **dumps).encode()
        + b"\n\n"
    )


def completion(text: str = "x", reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": reason}], **more}


def chat(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


KINDS = [
    (sse(completion()), EventKind.OUTPUT),
    (sse(completion("")), EventKind.OUTPUT),
    (sse(completion(reason="stop")), EventKind.FINISH),
    (sse(completion(reason="abort")), EventKind.FINISH),
    (sse(completion(reason="")), EventKind.OUTPUT),
    (sse(chat({"role": "assistant", "content": ""}, "")), EventKind.ROLE),
    (sse(completion(reason=7)), EventKind.OUTPUT),  # type: ignore[arg-type]
    (sse(chat({"role": "assistant", "content": ""})), EventKind.ROLE),
    (sse(chat({"role": "assistant", "content": None, "tool_calls": []})), EventKind.ROLE),
    (sse(chat({"role": "assistant", "content": "Hi"})), EventKind.OUTPUT),
    (sse(chat({"content": ""})), EventKind.OUTPUT),
    (sse(chat({})), EventKind.OUTPUT),
    (sse(chat({"role": "assistant", "content": ""}, "stop")), EventKind.FINISH),
    (sse({"id": "1", "choices": [], "usage": {"completion_tokens": 3}}), EventKind.USAGE),
    (sse({"id": "1", "choices": [], "usage": None}), EventKind.OTHER),
    (sse({"error": {"message": "no", "code": 500}}), EventKind.ERROR),
    (sse({"object": "error", "message": "no"}), EventKind.ERROR),
    (sse(completion(error={"message": "no"})), EventKind.ERROR),
    (sse(completion(error=None)), EventKind.OUTPUT),
    (b"data: [DONE]\n\n", EventKind.DONE),
    (b"data: [DONE] \r\n\r\n", EventKind.DONE),
    (b": ping\n\n", EventKind.OTHER),
    (b"\n\n", EventKind.OTHER),
    (b'data: {"choices":\ndata: [{"index":0,"text":"x"}]}\n\n', EventKind.OUTPUT),
]


@pytest.mark.parametrize(("raw", "kind"), KINDS)
def test_kind_of_an_event(raw: bytes, kind: EventKind) -> None:
    event = decode_event(raw)
    assert (event.kind, event.raw) == (kind, raw)


SPECIAL = [row for row in KINDS if row[1] not in (EventKind.OUTPUT, EventKind.ROLE)]
"""A role event is special only before the first output, and until then every event is decoded."""


@pytest.mark.parametrize(("raw", "kind"), SPECIAL)
def test_nothing_special_looks_plain(raw: bytes, kind: EventKind) -> None:
    assert not is_plain(raw)


@pytest.mark.parametrize(
    "raw", [b"data: nonsense\n\n", b"data: [1]\n\n", b'data: {"a":\n\n', b"data: \xff\n\n"]
)
def test_data_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_event(raw)


def test_deep_nesting_is_refused_and_nan_is_not() -> None:
    with pytest.raises(ValueError):
        decode_event(b'data: {"a":' + b"[" * 100_000 + b"\n\n")
    assert decode_event(b'data: {"choices":[{"text":"x","top":NaN}]}\n\n').kind is EventKind.OUTPUT


def test_usage_is_taken_from_any_event_that_has_it() -> None:
    event = decode_event(sse(completion(reason="stop", usage={"prompt_tokens": 4, "completion_tokens": 2})))
    assert event.usage == {"prompt_tokens": 4, "completion_tokens": 2}


def test_usual_events_are_plain() -> None:
    assert is_plain(sse(completion(" the")))
    assert is_plain(sse(completion("", usage=None)))
    assert is_plain(sse(chat({"content": "x\ny"})))


FOOLING = st.sampled_from(
    [
        '"finish_reason":null',
        '"finish_reason": "abort"',
        '"error"',
        "[DONE]",
        '"choices":[{',
        "\\",
        '"',
        "\n\n",
        "}",
    ]
)


@given(
    st.lists(FOOLING | st.text(max_size=3), max_size=8).map("".join), st.sampled_from(["stop", "abort", None])
)
def test_no_text_of_a_model_makes_a_special_event_look_plain(text: str, reason: str | None) -> None:
    for document in (completion(text, reason), chat({"content": text}, reason), {"error": {"message": text}}):
        raw = sse(document)
        if is_plain(raw):
            assert decode_event(raw).kind is EventKind.OUTPUT


@pytest.mark.parametrize("dumps", [{"separators": (", ", ": ")}, {"indent": 1}])
def test_another_way_to_write_json_is_decoded_instead(dumps: dict[str, Any]) -> None:
    assert not is_plain(sse(completion(), **dumps))
