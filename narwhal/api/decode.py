"""Checks of a client's generation request (http-api.md section 1).

Only what the router reads is checked; every other field reaches the engine as sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from narwhal.api.json_body import parse_object
from narwhal.errors import BadRequest, UnknownModel
from narwhal.model.plain_text import shown
from narwhal.model.request import Api, InferenceRequest

_COUNTS = frozenset(("n", "best_of", "max_tokens", "max_completion_tokens"))
_FLAGS = frozenset(("stream", "return_token_ids", "use_beam_search"))
_OURS = "kv_transfer_params"


class Head(Protocol):
    """What is known of a request before its body: identity, arrival (`arrived_at` on Clock.now)."""

    api: Api
    rid: str
    client_rid: str | None
    arrived_at: float
    arrived_wall: float
    traceparent: str | None


def decode_request(head: Head, body: bytes, *, model: str) -> InferenceRequest:
    """Parses and checks `body`. Raises BadRequest or UnknownModel; `param` names the field at fault."""
    fields = parse_object(body)
    _check_types(fields)
    _check_model(fields, model)
    _refuse_kv_descriptor(fields)
    _refuse_several_answers(fields)
    prompt_ids = _check_prompt(fields.get("prompt"))
    _check_messages(fields.get("messages"))
    _check_presence(head.api, fields)
    limit = fields.get("max_completion_tokens") if head.api is Api.CHAT else None
    return InferenceRequest(
        api=head.api,
        rid=head.rid,
        client_rid=head.client_rid,
        fields=fields,
        body=body,
        stream=bool(fields.get("stream")),
        include_usage=_include_usage(fields.get("stream_options")),
        return_token_ids=bool(fields.get("return_token_ids")),
        arrived_at=head.arrived_at,
        arrived_wall=head.arrived_wall,
        traceparent=head.traceparent,
        max_tokens=limit if limit is not None else fields.get("max_tokens"),
        prompt_ids=prompt_ids if head.api is Api.COMPLETIONS else None,
    )


def _check_types(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is None:
            continue
        if name in _FLAGS:
            if type(value) is not bool:
                raise BadRequest(f"{name} must be a boolean", param=name)
        elif name in _COUNTS:
            if type(value) is not int:
                raise BadRequest(f"{name} must be an integer", param=name)
            if value < 1:
                raise BadRequest(f"{name} must be at least 1", param=name)


def _check_model(fields: Mapping[str, Any], model: str) -> None:
    named = fields.get("model")
    if named is None or named == model:
        return
    if type(named) is not str:
        raise BadRequest("model must be a string", param="model")
    raise UnknownModel(f"The model `{shown(named)}` does not exist.", param="model")


def _refuse_kv_descriptor(fields: Mapping[str, Any]) -> None:
    inner = fields.get("vllm_xargs")
    if _OURS in fields:
        raise BadRequest(f"{_OURS} is set by the router", param=_OURS)
    if type(inner) is dict and _OURS in inner:
        raise BadRequest(f"vllm_xargs.{_OURS} is set by the router", param=f"vllm_xargs.{_OURS}")


def _refuse_several_answers(fields: Mapping[str, Any]) -> None:
    for name in ("n", "best_of"):
        if (fields.get(name) or 1) > 1:
            raise BadRequest(f"{name} above 1 is not supported: one request, one answer", param=name)
    if fields.get("use_beam_search"):
        raise BadRequest("use_beam_search is not supported", param="use_beam_search")


def _check_prompt(prompt: Any) -> int | None:
    """The number of token IDs, None for text. A list is one prompt: of token IDs, or with one member."""
    if prompt is None or type(prompt) is str:
        return None
    if type(prompt) is not list:
        raise BadRequest("prompt must be a string or an array", param="prompt")
    if not prompt:
        raise BadRequest("prompt must not be an empty array", param="prompt")
    if _all_integers(prompt):
        return len(prompt)
    if not all(type(member) is str or type(member) is list for member in prompt):
        raise BadRequest("prompt must hold strings, token IDs or arrays of token IDs", param="prompt")
    if len(prompt) > 1:
        raise BadRequest("prompt must not hold more than one prompt", param="prompt")
    return _check_single(prompt[0])


def _check_single(member: Any) -> int | None:
    if type(member) is str:
        return None
    if not member or not _all_integers(member):
        raise BadRequest("prompt must hold strings, token IDs or arrays of token IDs", param="prompt")
    return len(member)


def _all_integers(values: list[Any]) -> bool:
    return set(map(type, values)) == {int}


def _check_messages(messages: Any) -> None:
    if messages is None:
        return
    if type(messages) is not list:
        raise BadRequest("messages must be an array", param="messages")
    if any(type(message) is not dict for message in messages):
        raise BadRequest("messages must hold objects", param="messages")


def _check_presence(api: Api, fields: Mapping[str, Any]) -> None:
    name = "messages" if api is Api.CHAT else "prompt"
    if fields.get(name) is None or fields[name] == []:
        raise BadRequest(f"{name} is required", param=name)


def _include_usage(options: Any) -> bool:
    if options is None:
        return False
    if type(options) is not dict:
        raise BadRequest("stream_options must be an object", param="stream_options")
    asked = options.get("include_usage")
    if asked is not None and type(asked) is not bool:
        raise BadRequest(
            "stream_options.include_usage must be a boolean", param="stream_options.include_usage"
        )
    return bool(asked)
