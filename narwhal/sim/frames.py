"""Answers in vLLM 0.32.0's own shapes and key order: stream events and whole documents.

Events are put together from bytes: a token costs one join, no JSON encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from narwhal.sim.request import GenerateRequest
from narwhal.sim.speech import Piece

DONE = b"[DONE]"
_LOGPROB = -0.25


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ends: `finish_reason`, and the stop string if one was met."""

    finish_reason: str
    stop_reason: str | None = None


class Frames:
    """Event payloads (the JSON after `data: `) of one stream."""

    __slots__ = ("_head", "_offset", "_request")

    def __init__(self, request: GenerateRequest, *, id: str, model: str, created: int) -> None:
        self._request = request
        self._offset = 0
        kind = "chat.completion.chunk" if request.chat else "text_completion"
        start = {"id": id, "object": kind, "created": created, "model": model}
        self._head = orjson.dumps(start)[:-1]

    def opening(self) -> bytes | None:
        """Chat's role event; None for completions."""
        if not self._request.chat:
            return None
        return (
            self._head + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}],"prompt_token_ids":%b}' % self._prompt_ids()
        )

    def token(self, piece: Piece, position: int, *, ending: Ending | None) -> bytes:
        """The event of one token; `ending` on the last one."""
        request = self._request
        ids = b"[%d]" % piece.id if request.return_token_ids else b"null"
        logprobs = self._logprobs(piece) if request.logprobs else b"null"
        finish = b"null" if ending is None else b'"%b"' % ending.finish_reason.encode()
        stop = b"null" if ending is None else orjson.dumps(ending.stop_reason)
        if request.chat:
            stopped = b"" if ending is None else b',"stop_reason":%b' % stop
            return (
                b'%b,"choices":[{"index":0,"delta":%b,"logprobs":%b,"finish_reason":%b%b,"token_ids":%b}]}'
                % (self._head, piece.json, logprobs, finish, stopped, ids)
            )
        prompt_ids = b"null" if position else self._prompt_ids()
        return (
            b'%b,"choices":[{"index":0,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b,'
            b'"prompt_token_ids":%b,"token_ids":%b}],"usage":null}'
            % (self._head, piece.json, logprobs, finish, stop, prompt_ids, ids)
        )

    def cut(self, position: int) -> bytes:
        """The event that ends a stream without a token of its own (an aborted request)."""
        nothing = Piece(0, "", b"{}" if self._request.chat else b'""')
        event = self.token(nothing, position, ending=Ending("abort"))
        return (
            event.replace(b'"token_ids":[0]', b'"token_ids":[]') if self._request.return_token_ids else event
        )

    def usage(self, tokens: int) -> bytes:
        """The usage-only event."""
        usage = orjson.dumps(usage_document(self._request.prompt.count, tokens))
        return self._head + b',"choices":[],"usage":%b}' % usage

    def _logprobs(self, piece: Piece) -> bytes:
        document = _logprobs(self._request, (piece,), offset=self._offset)
        self._offset += len(piece.text)
        return orjson.dumps(document)

    def _prompt_ids(self) -> bytes:
        return orjson.dumps(self._request.prompt.ids()) if self._request.return_token_ids else b"null"


def usage_document(prompt_tokens: int, tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + tokens,
        "completion_tokens": tokens,
    }


def whole_answer(
    request: GenerateRequest, pieces: Sequence[Piece], *, ending: Ending, id: str, head: Mapping[str, Any]
) -> dict[str, Any]:
    """The non-streaming answer; `head` has created and model, and may have kv_transfer_params."""
    choice: dict[str, Any] = {"index": 0}
    if request.chat:
        choice["message"] = message_of(pieces)
    else:
        choice["text"] = "".join(piece.text for piece in pieces)
    choice["logprobs"] = _logprobs(request, pieces) if request.logprobs else None
    choice |= {"finish_reason": ending.finish_reason, "stop_reason": ending.stop_reason}
    choice["token_ids"] = [piece.id for piece in pieces] if request.return_token_ids else None
    prompt_ids = request.prompt.ids() if request.return_token_ids else None
    if not request.chat:
        choice |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids}
    document: dict[str, Any] = {
        "id": id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": head["created"],
        "model": head["model"],
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {**usage_document(request.prompt.count, len(pieces)), "prompt_tokens_details": None},
    }
    if request.chat:
        document |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids}
    document["kv_transfer_params"] = None
    return document


def message_of(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The chat message that a stream of these pieces adds up to."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning": None,
    }
    for piece in pieces:
        delta: Mapping[str, Any] = {"content": piece.text} if piece.delta is None else piece.delta
        for key, value in delta.items():
            if key == "tool_calls":
                _merge_tool_calls(message["tool_calls"], value)
            elif key == "function_call":
                message[key] = _merged(message[key] or {}, value)
            elif isinstance(value, str) and key != "role":
                message[key] = (message.get(key) or "") + value
    return message


def _merge_tool_calls(calls: list[dict[str, Any]], deltas: Sequence[Mapping[str, Any]]) -> None:
    for delta in deltas:
        index = int(delta.get("index", 0))
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[index]
        call["id"] = delta.get("id") or call["id"]
        call["function"] = _merged(call["function"], delta.get("function") or {})


def _merged(whole: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Function name and arguments, each text added to what is there."""
    return {key: str(whole.get(key) or "") + str(delta.get(key) or "") for key in ("name", "arguments")}


def _logprobs(request: GenerateRequest, pieces: Sequence[Piece], *, offset: int = 0) -> dict[str, Any]:
    """`offset`: characters of the answer before these pieces."""
    texts = [piece.text for piece in pieces]
    if request.chat:
        rows = [
            {"token": text, "logprob": _LOGPROB, "bytes": list(text.encode()), "top_logprobs": []}
            for text in texts
        ]
        return {"content": rows}
    return {
        "text_offset": [offset + sum(map(len, texts[:index])) for index in range(len(texts))],
        "token_logprobs": [_LOGPROB] * len(texts),
        "tokens": texts,
        "top_logprobs": [{text: _LOGPROB} for text in texts],
    }


def line_ends(event: bytes, end: bytes) -> bytes:
    """One `data:` event framed with this line end."""
    return b"data: " + event + end + end


def over_several_lines(event: bytes, end: bytes) -> bytes:
    """The same JSON as one event of several data lines (a line end is white space between JSON tokens)."""
    if event == DONE:
        return line_ends(event, end)
    pretty = orjson.dumps(orjson.loads(event), option=orjson.OPT_INDENT_2).split(b"\n")
    return b"".join(b"data: " + line + end for line in pretty) + end
