"""Dialects by name: bodies of the legs out of a client's request, and what their answers say.

`vllm`: the OpenAI-compatible server of vLLM (engines.md section 1). What the client sent reaches the
engine as sent: a decode body is the client's bytes with fields added wherever that is possible, and a
body that must lose fields is encoded again with integers of any size kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from narwhal.engine.kv_transfer import CONNECTORS, Connector
from narwhal.engine.refusal import refusal
from narwhal.engine.whole_stream import check_whole_stream
from narwhal.errors import ConfigError, HandoffInvalid, StreamBroken
from narwhal.model.decoding import CUT_FINISH
from narwhal.model.request import Api, InferenceRequest
from narwhal.model.wire_json import decode_object, encode_json
from narwhal.ports import Dialect, EngineReply, KvDescriptor

_DECODER = json.JSONDecoder()
_STREAM_ONLY = frozenset(("stream", "stream_options", "min_tokens"))
_TOKENIZE_FIELDS = (
    "model", "prompt", "messages", "tools", "add_special_tokens", "add_generation_prompt",
    "continue_final_message", "chat_template", "chat_template_kwargs",
)  # fmt: skip


class Vllm:
    """Implements `ports.Dialect` for vLLM engines with one KV connector."""

    name = "vllm"

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._ask = dict(connector.prefill_params())

    def prefill_body(self, request: InferenceRequest) -> bytes:
        fields = {key: value for key, value in request.fields.items() if key not in _STREAM_ONLY}
        fields["max_tokens"] = 1
        if request.api is Api.CHAT:
            fields["max_completion_tokens"] = 1
        fields["kv_transfer_params"] = self._ask
        return encode(fields)

    def read_prefill(self, reply: EngineReply, iid: str) -> KvDescriptor:
        document = _answer(reply, iid)
        _check_finish(document.get("choices"), iid)
        descriptor = self._connector.descriptor(document.get("kv_transfer_params"), iid)
        _check_sendable(descriptor, iid)
        descriptor.since = reply.not_before
        return descriptor

    def decode_body(self, request: InferenceRequest, descriptor: KvDescriptor | None) -> bytes:
        added: dict[str, Any] = {}
        if request.fields.get("stream") is not True:
            added["stream"] = True
        options = request.fields.get("stream_options") or {}
        if options.get("include_usage") is not True:
            # vLLM heeds it beside include_usage only: with ours it would show usage in every event.
            kept = {name: value for name, value in options.items() if name != "continuous_usage_stats"}
            added["stream_options"] = {**kept, "include_usage": True}
        if descriptor is not None:
            added["kv_transfer_params"] = dict(descriptor.params)
        return _with_fields(request, added)

    def read_decode(self, reply: EngineReply, iid: str) -> None:
        if reply.status != 200:
            raise refusal(reply, iid)
        check_whole_stream(reply, iid)

    def tokenize_body(self, request: InferenceRequest) -> bytes:
        return encode({key: request.fields[key] for key in _TOKENIZE_FIELDS if key in request.fields})

    def read_tokenize(self, reply: EngineReply, iid: str) -> int:
        # Nothing of it travels on, so the faster parser may read its long list of token IDs.
        count = _answer(reply, iid, load=orjson.loads).get("count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise StreamBroken("tokenize answer without a count", iid=iid, kind="malformed")
        return count


def encode(fields: Mapping[str, Any]) -> bytes:
    """JSON as UTF-8. Integers beyond 64 bits need the standard encoder, which is slower."""
    try:
        return orjson.dumps(fields)
    except TypeError:
        return encode_json(fields)


def _with_fields(request: InferenceRequest, added: Mapping[str, Any]) -> bytes:
    """The client's own bytes with `added` before the closing brace, unless one of them stands there."""
    if not added:
        return request.body
    if not request.fields or not request.fields.keys().isdisjoint(added):
        return encode({**request.fields, **added})
    return request.body.rstrip()[:-1] + b"," + encode(added)[1:]


def _load(body: bytes) -> Any:
    """As `json.loads`, which is slower; numbers of any size stay as they are."""
    if body.startswith(b"{"):
        return decode_object(body.decode("utf-8", "surrogatepass"), _DECODER)
    return json.loads(body)


def _answer(reply: EngineReply, iid: str, *, load: Callable[[bytes], Any] = _load) -> Mapping[str, Any]:
    if reply.status != 200:
        raise refusal(reply, iid)
    try:
        document = load(reply.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise StreamBroken("a 200 that is no JSON object", iid=iid, kind="malformed")
    if document.get("error") is not None or document.get("object") == "error":
        raise StreamBroken("an error object in a 200", iid=iid, kind="error_object")
    return document


def _check_finish(choices: Any, iid: str) -> None:
    """An engine that is told to stop answers 200 with what it has; its blocks may be gone already."""
    for choice in choices if isinstance(choices, list) else ():
        reason = choice.get("finish_reason") if isinstance(choice, dict) else None
        if reason in CUT_FINISH:
            raise StreamBroken(f"finish reason {reason!r}", iid=iid, kind="bad_finish")


def _check_sendable(descriptor: KvDescriptor, iid: str) -> None:
    """Found out here it is the producer's failure; at the decode leg it would be a bug of ours."""
    try:
        encode(descriptor.params)
    except ValueError:
        raise HandoffInvalid("kv_transfer_params cannot be written as JSON again", iid=iid) from None


DIALECTS: Mapping[str, type[Vllm]] = MappingProxyType({Vllm.name: Vllm})
"""By the name that `engine.dialect` gives."""


def make_dialect(dialect: str, connector: str) -> Dialect:
    """Raises ConfigError listing the known names."""
    problems = [
        f"engine.{field} must be one of {', '.join(sorted(known))}, got {name!r}"
        for field, name, known in (("dialect", dialect, DIALECTS), ("connector", connector, CONNECTORS))
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    return DIALECTS[dialect](CONNECTORS[connector]())
