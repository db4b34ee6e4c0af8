"""Bodies of the two generating routes and of /tokenize, as far as the simulated engine reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from narwhal.errors import NarwhalError
from narwhal.sim.settings import SimSettings
from narwhal.sim.text import Prompt, text_prompt, token_prompt

_COMPLETION_DEFAULT_TOKENS = 16


class Refusal(NarwhalError):
    """An answer in vLLM's error shape instead of work."""

    def __init__(
        self, status: int, message: str, *, type: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param

    def document(self) -> dict[str, Any]:
        return error_document(str(self), self.type, code=self.status, param=self.param)


def error_document(message: str, type: str, *, code: int, param: str | None = None) -> dict[str, Any]:
    """vLLM's error body."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def _read_json_slowly(body: bytes) -> Any:
    """vLLM reads bodies with the standard parser, which takes longer integers than the fast one."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"JSON decode error: {error}") from error


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generating request.

    `limit` is the most tokens to generate; `named_limit` whether the client named it (a request that
    did not stops by itself). `kv` is `kv_transfer_params` or empty. `fields` is the whole body.
    """

    chat: bool
    prompt: Prompt
    limit: int
    named_limit: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool
    logprobs: bool
    stop: tuple[str, ...]
    kv: Mapping[str, Any]
    fields: Mapping[str, Any]

    @property
    def produces_kv(self) -> bool:
        return self.kv.get("do_remote_decode") is True

    @property
    def consumes_kv(self) -> bool:
        return self.kv.get("do_remote_prefill") is True


def read_json(body: bytes) -> Mapping[str, Any]:
    """A JSON object. Raises Refusal (400)."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = _read_json_slowly(body)
    if not isinstance(fields, dict):
        raise Refusal(400, "Input should be a valid dictionary")
    return fields


def read_generate(fields: Mapping[str, Any], settings: SimSettings, *, chat: bool) -> GenerateRequest:
    """Check and read one generating request. Raises Refusal with the status that vLLM answers."""
    _check_model(fields, settings)
    for name in ("n", "best_of"):
        if fields.get(name) not in (None, 1):
            raise Refusal(400, f"{name} must be 1 on this simulated engine", param=name)
    prompt = read_prompt(fields, chat=chat)
    limit, named = _limit(fields, settings, prompt=prompt, chat=chat)
    options = fields.get("stream_options")
    kv = fields.get("kv_transfer_params")
    return GenerateRequest(
        chat=chat,
        prompt=prompt,
        limit=limit,
        named_limit=named,
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        return_token_ids=fields.get("return_token_ids") is True,
        logprobs=fields.get("logprobs") not in (None, False),
        stop=_stop(fields.get("stop")),
        kv=kv if isinstance(kv, dict) else {},
        fields=fields,
    )


def read_prompt(fields: Mapping[str, Any], *, chat: bool) -> Prompt:
    """The prompt, or the messages through a plain chat template. Raises Refusal (400)."""
    if chat:
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refusal(400, "messages: Field required", param="messages")
        return text_prompt("".join(_message_text(message) for message in messages) + "<|assistant|>")
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return text_prompt(prompt)
    if isinstance(prompt, list) and prompt and all(_is_integer(token) for token in prompt):
        return token_prompt(prompt)
    raise Refusal(400, "prompt: must be a nonempty string or list of token IDs", param="prompt")


def _message_text(message: Any) -> str:
    if not isinstance(message, dict):
        raise Refusal(400, "messages: Input should be a valid dictionary", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return f"<|{message.get('role')}|>{'' if content is None else content}\n"


def _check_model(fields: Mapping[str, Any], settings: SimSettings) -> None:
    model = fields.get("model")
    if model is not None and model != settings.model:
        raise unknown_model(model)


def unknown_model(model: Any) -> Refusal:
    return Refusal(404, f"The model `{model}` does not exist.", type="NotFoundError", param="model")


def _limit(
    fields: Mapping[str, Any], settings: SimSettings, *, prompt: Prompt, chat: bool
) -> tuple[int, bool]:
    """Most tokens to generate, and whether the request said so. Raises Refusal for what cannot fit."""
    wanted = fields.get("max_completion_tokens") if chat else None
    wanted = fields.get("max_tokens") if wanted is None else wanted
    if wanted is not None and (not _is_integer(wanted) or wanted < 1):
        raise Refusal(400, f"max_tokens must be at least 1, got {wanted}.", param="max_tokens")
    room = settings.max_model_len - prompt.count
    if room < 1 or (wanted is not None and wanted > room):
        raise Refusal(
            400,
            f"This model's maximum context length is {settings.max_model_len} tokens. However, you requested "
            f"{wanted or 1} output tokens and your prompt contains at least {prompt.count} input tokens, "
            f"for a total of at least {prompt.count + (wanted or 1)} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )
    if wanted is not None:
        return wanted, True
    return (room, False) if chat else (min(room, _COMPLETION_DEFAULT_TOKENS), True)


def _stop(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, Sequence):
        return tuple(text for text in value if isinstance(text, str) and text)
    return ()


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
