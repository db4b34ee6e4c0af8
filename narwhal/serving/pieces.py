"""The one choice of an answer, put together from the pieces that a stream brings.

Types are those that `engine/event_shape.py` holds every decoded event to; only what it does not name is
looked at again here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_ID_BYTES = 8
"""What a token ID may take in the answer, with its comma."""


class Text:
    """A string that comes in pieces; None until a piece has come."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, piece: str | None) -> int:
        """Bytes added."""
        if piece is None:
            return 0
        self._pieces.append(piece)
        return len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))

    def join(self) -> str | None:
        return "".join(self._pieces) if self._pieces else None


class Choice:
    """What both APIs have in common. `size`: bytes kept so far, at least roughly."""

    def __init__(self) -> None:
        self.size = 0
        self._stop_reason: Any = None
        self._logprobs: dict[str, list[Any]] | None = None
        self._token_ids: list[int] = []
        self._prompt_logprobs: Any = None

    def take(self, choice: Mapping[str, Any]) -> None:
        """One event's `choices[0]`."""
        if choice.get("stop_reason") is not None:
            self._stop_reason = choice["stop_reason"]
        if choice.get("prompt_logprobs") is not None:
            self._prompt_logprobs = choice["prompt_logprobs"]
        self._take_logprobs(choice.get("logprobs"))
        ids = choice.get("token_ids") or ()
        self._token_ids += ids
        self.size += _ID_BYTES * len(ids)

    def document(self, *, finish_reason: str | None, token_ids: bool) -> dict[str, Any]:
        """`token_ids`: whether the client asked for them."""
        document = {"index": 0, **self._content(), "logprobs": self._logprobs}
        document |= {"finish_reason": finish_reason, "stop_reason": self._stop_reason}
        if self._prompt_logprobs is not None:
            document["prompt_logprobs"] = self._prompt_logprobs
        if token_ids:
            document["token_ids"] = self._token_ids
        return document

    def _content(self) -> dict[str, Any]:
        raise NotImplementedError

    def _take_logprobs(self, logprobs: Mapping[str, Any] | None) -> None:
        """Completions: parallel lists by name. Chat: lists `content` and `refusal`. All grow by piece, and so
        does any other list that an engine puts beside them."""
        if logprobs is None:
            return
        kept = self._logprobs = self._logprobs if self._logprobs is not None else {}
        for key, values in logprobs.items():
            if isinstance(values, list):
                kept.setdefault(key, []).extend(values)
                self.size += len(str(values))


class TextChoice(Choice):
    """Of `/v1/completions`."""

    def __init__(self) -> None:
        super().__init__()
        self._text = Text()

    def take(self, choice: Mapping[str, Any]) -> None:
        super().take(choice)
        self.size += self._text.add(choice.get("text"))

    def _content(self) -> dict[str, Any]:
        return {"text": self._text.join() or ""}


class ToolCalls:
    """Tool calls by their `index`; the arguments of each come in pieces."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, Text] = {}

    def add(self, deltas: Iterable[Mapping[str, Any]] | None) -> int:
        """Bytes added."""
        return sum(map(self._add_one, deltas or ()))

    def _add_one(self, delta: Mapping[str, Any]) -> int:
        index = delta.get("index")
        place = len(self._calls) if index is None else index
        call = self._calls.setdefault(place, {"id": None, "type": "function", "name": None})
        function = delta.get("function") or {}
        for key, value in (
            ("id", delta.get("id")),
            ("type", delta.get("type")),
            ("name", function.get("name")),
        ):
            if value:
                call[key] = value
        return self._arguments.setdefault(place, Text()).add(function.get("arguments"))

    def documents(self) -> Iterable[dict[str, Any]]:
        for place in sorted(self._calls):
            call = self._calls[place]
            function = {"name": call["name"], "arguments": self._arguments[place].join() or ""}
            yield {"id": call["id"], "type": call["type"], "function": function}


class ChatChoice(Choice):
    """Of `/v1/chat/completions`: a message out of deltas."""

    _TEXTS = ("content", "refusal", "reasoning", "reasoning_content")

    def __init__(self) -> None:
        super().__init__()
        self._role = "assistant"
        self._texts = {key: Text() for key in self._TEXTS}
        self._tool_calls = ToolCalls()
        self._function_name: str | None = None
        self._function_arguments = Text()

    def take(self, choice: Mapping[str, Any]) -> None:
        super().take(choice)
        delta = choice.get("delta") or {}
        if delta.get("role") is not None:
            self._role = delta["role"]
        self.size += sum(text.add(delta.get(key)) for key, text in self._texts.items())
        self.size += self._tool_calls.add(delta.get("tool_calls"))
        self._take_function_call(delta.get("function_call"))

    def _take_function_call(self, call: Mapping[str, Any] | None) -> None:
        if call:
            self._function_name = call.get("name") or self._function_name
            self.size += self._function_arguments.add(call.get("arguments"))

    def _content(self) -> dict[str, Any]:
        texts = {key: text.join() for key, text in self._texts.items()}
        calls = list(self._tool_calls.documents())
        called = bool(calls) or self._function_name is not None
        content = texts["content"] or (None if called else "")
        message: dict[str, Any] = {"role": self._role, "content": content, "refusal": texts["refusal"]}
        message |= {key: texts[key] for key in ("reasoning", "reasoning_content") if texts[key] is not None}
        if calls:
            message["tool_calls"] = calls
        if self._function_name is not None:
            arguments = self._function_arguments.join() or ""
            message["function_call"] = {"name": self._function_name, "arguments": arguments}
        return {"message": message}
