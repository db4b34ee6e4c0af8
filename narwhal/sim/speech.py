"""What one answer says, piece by piece: plain text, reasoning, a tool call, or a script.

A piece is one token event. Hints in the request choose the form: `tools` with a `tool_choice` other
than auto or none gives a tool call, `chat_template_kwargs.enable_thinking` reasoning first, and
`vllm_xargs.sim_script` (a JSON list as text: strings, or delta objects for chat) exactly those pieces.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from narwhal.sim.request import GenerateRequest, Refusal
from narwhal.sim.text import answer_token

_SCRIPT_ID = 900
_THINKING_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token: its ID, its text, and the JSON that its event carries.

    For completions `json` is the text, for chat the delta object; `delta` is set unless it is plain content.
    """

    id: int
    text: str
    json: bytes
    delta: Mapping[str, Any] | None = None


class Speech:
    """The pieces of one answer, by position from 0. `length` None: as many as are asked for."""

    __slots__ = ("_chat", "_seed", "_thinking", "finish_reason", "length", "script")

    def __init__(self, request: GenerateRequest, seed: int, *, natural_length: int) -> None:
        self._chat = request.chat
        self._seed = seed
        self._thinking = _THINKING_TOKENS if request.chat and _wants_thinking(request.fields) else 0
        self.script = _script(request)
        self.finish_reason = "stop"
        self.length = None if request.named_limit else natural_length
        if self.script is not None:
            self.length = len(self.script)
            if any(piece.delta and "tool_calls" in piece.delta for piece in self.script):
                self.finish_reason = "tool_calls"

    def piece(self, position: int) -> Piece:
        if self.script is not None:
            return self.script[position]
        token = answer_token(self._seed, position)
        if not self._chat:
            return Piece(token.id, token.text, token.json)
        if position < self._thinking:
            return Piece(token.id, token.text, b'{"reasoning":%b}' % token.json, {"reasoning": token.text})
        return Piece(token.id, token.text, b'{"content":%b}' % token.json)


def _wants_thinking(fields: Mapping[str, Any]) -> bool:
    kwargs = fields.get("chat_template_kwargs")
    return isinstance(kwargs, dict) and kwargs.get("enable_thinking") is True


def _script(request: GenerateRequest) -> tuple[Piece, ...] | None:
    xargs = request.fields.get("vllm_xargs")
    if isinstance(xargs, dict) and "sim_script" in xargs:
        return _read_script(xargs["sim_script"], chat=request.chat)
    function = _forced_function(request.fields) if request.chat else None
    return None if function is None else _tool_call(function)


def _read_script(source: Any, *, chat: bool) -> tuple[Piece, ...]:
    refusal = Refusal(400, "vllm_xargs.sim_script: must be a nonempty JSON list of strings or objects")
    try:
        steps = orjson.loads(source)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise refusal from error
    if not isinstance(steps, list) or not steps:
        raise refusal
    return tuple(_scripted(step, index, chat=chat) for index, step in enumerate(steps))


def _scripted(step: Any, index: int, *, chat: bool) -> Piece:
    if isinstance(step, str):
        json = orjson.dumps(step)
        return Piece(_SCRIPT_ID + index, step, b'{"content":%b}' % json if chat else json)
    if chat and isinstance(step, dict):
        return Piece(_SCRIPT_ID + index, "", orjson.dumps(step), step)
    raise Refusal(400, f"vllm_xargs.sim_script[{index}]: must be a string, or for chat an object")


def _forced_function(fields: Mapping[str, Any]) -> str | None:
    choice, tools = fields.get("tool_choice"), fields.get("tools")
    if isinstance(choice, dict):
        function = choice.get("function")
        return str(function.get("name")) if isinstance(function, dict) else None
    if choice != "required" or not isinstance(tools, list) or not tools:
        return None
    function = tools[0].get("function") if isinstance(tools[0], dict) else None
    return str(function.get("name")) if isinstance(function, dict) else None


def _tool_call(function: str) -> tuple[Piece, ...]:
    first = {
        "id": f"chatcmpl-tool-{secrets.token_hex(16)}",
        "type": "function",
        "index": 0,
        "function": {"name": function, "arguments": ""},
    }
    deltas: list[dict[str, Any]] = [{"tool_calls": [first]}]
    deltas += [
        {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
        for part in ('{"where"', ': "under', ' the ice"}')
    ]
    return tuple(_scripted(delta, index, chat=True) for index, delta in enumerate(deltas))
