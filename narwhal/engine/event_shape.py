"""What types an event of a decode stream may have, where clients and the assembled answer read it.

An engine that writes something else has said nothing: taken for text, it would become an empty answer with a
count of tokens. A table of exact types and not the language of `model/shape.py`, since it is asked once a
token; and what was found is named by its kind only, since it is a model's text as a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from narwhal.model.request import Api

Types = tuple[type, ...]
Fields = Mapping[str, Types]

_MAYBE_TEXT: Types = (str, NoneType)
_MAYBE_COUNT: Types = (int, NoneType)
_MAYBE_LIST: Types = (list, NoneType)
_MAYBE_OBJECT: Types = (dict, NoneType)

_EVENT: Fields = {"choices": _MAYBE_LIST, "usage": _MAYBE_OBJECT}
_USAGE: Fields = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _MAYBE_COUNT)
_CHOICE: Fields = {
    "index": (int,),
    "text": (str,),
    "delta": (dict,),
    "logprobs": _MAYBE_OBJECT,
    "token_ids": _MAYBE_LIST,
    "prompt_token_ids": _MAYBE_LIST,
}
# Of both APIs: all that a whole answer keeps.
_LOGPROBS: Fields = dict.fromkeys(
    ("tokens", "token_logprobs", "top_logprobs", "text_offset", "content", "refusal"), _MAYBE_LIST
)
_DELTA: Fields = {
    **dict.fromkeys(("role", "content", "refusal", "reasoning", "reasoning_content"), _MAYBE_TEXT),
    "tool_calls": _MAYBE_LIST,
    "function_call": _MAYBE_OBJECT,
}
_TOOL_CALL: Fields = {
    "index": _MAYBE_COUNT,
    "id": _MAYBE_TEXT,
    "type": _MAYBE_TEXT,
    "function": _MAYBE_OBJECT,
}
_FUNCTION: Fields = {"name": _MAYBE_TEXT, "arguments": _MAYBE_TEXT}

_SAYS: Mapping[str, tuple[str, str]] = {Api.COMPLETIONS: ("text", "delta"), Api.CHAT: ("delta", "text")}
"""By route: the field that holds what an event says, and that of the other route."""

_WORDS: Mapping[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}


def wrong_shape(document: Mapping[str, Any], route: str = "") -> str:
    """The first thing that is wrong with an event, with its place; "" for nothing.

    `route`: the path that was asked, of which alone its choices may be; "": of either.
    """
    wrong = _wrong(document, _EVENT)
    if wrong:
        return wrong
    usage = document.get("usage")
    if usage and (wrong := _wrong(usage, _USAGE, at="usage.")):
        return wrong
    for number, choice in enumerate(document.get("choices") or ()):
        if wrong := _wrong_choice(choice, f"choices[{number}]", route=route):
            return wrong
    return ""


def _wrong_choice(choice: Any, at: str, *, route: str) -> str:
    if type(choice) is not dict:
        return _told(at, (dict,), found=choice)
    says = _SAYS.get(route)
    if says and says[1] in choice and says[0] not in choice:
        return f"{at} has {says[1]} for {says[0]}: it is of the other route"
    wrong = _wrong(choice, _CHOICE, at=at + ".")
    logprobs = choice.get("logprobs")
    if logprobs and not wrong:
        wrong = _wrong(logprobs, _LOGPROBS, at=at + ".logprobs.")
    if wrong:
        return wrong
    delta = choice.get("delta")
    if delta is not None:
        return _wrong_delta(delta, at + ".delta.")
    if "text" not in choice and not choice.get("finish_reason"):
        return f"{at} has neither text nor delta"
    return ""


def _wrong_delta(delta: Mapping[str, Any], at: str) -> str:
    wrong = _wrong(delta, _DELTA, at=at)
    if wrong:
        return wrong
    for number, call in enumerate(delta.get("tool_calls") or ()):
        if wrong := _wrong_call(call, f"{at}tool_calls[{number}]"):
            return wrong
    return _wrong(delta.get("function_call") or {}, _FUNCTION, at=at + "function_call.")


def _wrong_call(call: Any, at: str) -> str:
    if type(call) is not dict:
        return _told(at, (dict,), found=call)
    wrong = _wrong(call, _TOOL_CALL, at=at + ".")
    return wrong or _wrong(call.get("function") or {}, _FUNCTION, at=at + ".function.")


def _wrong(values: Mapping[str, Any], fields: Fields, *, at: str = "") -> str:
    for name, value in values.items():
        types = fields.get(name)
        if types is not None and type(value) not in types:
            return _told(at + name, types, found=value)
    return ""


def _told(at: str, types: Types, *, found: Any) -> str:
    wanted = " or ".join(_WORDS[one] for one in types)
    return f"{at} must be {wanted}, not {'a number' if type(found) is int else _WORDS[type(found)]}"
