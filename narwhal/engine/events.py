"""What the events of an OpenAI-compatible decode stream say (engines.md section 1, recorded from vLLM)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from narwhal.engine.event_shape import wrong_shape
from narwhal.engine.sse import event_data
from narwhal.ports import EventKind, StreamEvent

_DONE = b"[DONE]"


def is_plain(event: bytes) -> bool:
    """True only for one line of JSON with a choice that says something and whose finish reason is null, and
    without an error. Of the types only that of what it says is looked at.

    The searched words contain unescaped quotes, which no JSON string can hold: text of a model cannot
    make a special event look plain. It can hide a plain one; that one is decoded like any other.
    (`find`, because `in` first tries its operand as an integer, which costs an exception.)
    """
    return (
        event.startswith(b"data: {")
        and event.endswith(b"}\n\n")
        and event.find(b"\n") == len(event) - 2
        and event.find(b"\r") < 0
        and event.count(b"finish_reason") == 1
        and event.find(b'"finish_reason":null') >= 0
        and event.find(b'"choices":[{') >= 0
        and (
            event.find(b'"text":"') >= 0
            or event.find(b'"content":"') >= 0
            or event.find(b'"reasoning":"') >= 0
            or event.find(b'"reasoning_content":"') >= 0
            or event.find(b'"tool_calls":[{') >= 0
        )
        and event.find(b'"error"') < 0
    )


def decode_event(raw: bytes, route: str = "") -> StreamEvent:
    """Raises ValueError for data that is no JSON object, whose tokens or counts are of a wrong type, or that
    is of another `route` than was asked ("": of either)."""
    data = event_data(raw)
    if not data:
        return StreamEvent(EventKind.OTHER, raw)
    if data.strip() == _DONE:
        return StreamEvent(EventKind.DONE, raw)
    document = _load(data)
    event = StreamEvent(EventKind.OTHER, raw, document)
    if document.get("error") is not None or document.get("object") == "error":
        event.kind = EventKind.ERROR
        return event
    if wrong := wrong_shape(document, route):
        raise ValueError(wrong)
    event.usage = document.get("usage")
    _judge(event, document.get("choices"))
    return event


def _load(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        document = _load_leniently(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _load_leniently(data: bytes) -> Any:
    """Engines may write NaN for a log probability; the standard decoder takes it."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _judge(event: StreamEvent, choices: Sequence[Mapping[str, Any]] | None) -> None:
    if choices:
        choice = choices[0]
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            event.kind, event.finish_reason = EventKind.FINISH, reason
        else:
            event.kind = EventKind.ROLE if _only_role(choice) else EventKind.OUTPUT
    elif event.usage is not None:
        event.kind = EventKind.USAGE


def _only_role(choice: Mapping[str, Any]) -> bool:
    """Chat's opening event: `delta` has a role, and nothing that a model generated."""
    delta = choice.get("delta")
    if delta is None or not delta.get("role") or choice.get("token_ids"):
        return False
    return not any(value for key, value in delta.items() if key != "role")
