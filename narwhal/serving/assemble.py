"""A non-streaming answer out of a decode leg's stream (http-api.md section 1).

The leg is streamed whatever the client asked, so that deadlines, aborts and bad ends are seen as they
happen; here its events become one document. Clean-end rules are those of a relay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from narwhal.clock import Clock
from narwhal.errors import InvariantViolation, StreamBroken
from narwhal.model.request import Api
from narwhal.ports import LegFlow, StreamEvent
from narwhal.serving.pieces import ChatChoice, Choice, TextChoice
from narwhal.serving.relay import LegTally

_OBJECTS = {Api.COMPLETIONS: "text_completion", Api.CHAT: "chat.completion"}
_TOP = ("id", "created", "model", "service_tier", "system_fingerprint", "prompt_logprobs")


@dataclass(frozen=True, slots=True)
class AssemblePlan:
    """`limit`: most bytes of the answer (`serving.max_response_bytes`)."""

    api: Api
    return_token_ids: bool
    limit: int


class Assembler:
    """`ports.StreamSink` for a client that wants one document; needs `StreamCall.decode_events`."""

    __slots__ = ("_choice", "_plan", "_prompt_token_ids", "_top", "tally")

    def __init__(self, plan: AssemblePlan, *, clock: Clock) -> None:
        self.tally = LegTally(clock)
        self._plan = plan
        self._choice: Choice = ChatChoice() if plan.api is Api.CHAT else TextChoice()
        self._top: dict[str, Any] = {}
        self._prompt_token_ids: list[int] | None = None

    # --- ports.StreamSink ---

    def on_open(self, flow: LegFlow) -> None:
        self.tally.flow = flow

    def on_plain(self, data: bytes, events: int) -> None:
        raise InvariantViolation("an assembled leg must be opened with decode_events")

    def on_events(self, events: Sequence[StreamEvent]) -> None:
        for event in events:
            broken = self.tally.take(event) or self._take(event)
            if broken is not None:
                if self.tally.flow is not None:
                    self.tally.flow.fail(broken)
                return

    # --- for the handler ---

    def body(self) -> bytes:
        """The whole answer as JSON, once the leg has ended cleanly.

        Raises StreamBroken(kind="too_large") when it is over the limit.
        """
        body = _encode(self._document())
        if len(body) > self._plan.limit:
            raise self._too_large()
        return body

    # --- events ---

    def _take(self, event: StreamEvent) -> StreamBroken | None:
        document = event.document
        if document is None:
            return None
        for key in _TOP:
            if document.get(key) is not None:
                self._top.setdefault(key, document[key])
        self._take_prompt_ids(document)
        for choice in (document.get("choices") or ())[:1]:
            self._take_prompt_ids(choice)
            self._choice.take(choice)
        return self._too_large() if self._choice.size > self._plan.limit else None

    def _take_prompt_ids(self, holder: Mapping[str, Any]) -> None:
        ids = holder.get("prompt_token_ids")
        if isinstance(ids, list) and self._prompt_token_ids is None:
            self._prompt_token_ids = ids
            self._choice.size += 8 * len(ids)

    def _document(self) -> dict[str, Any]:
        api = self._plan.api
        choice = self._choice.document(
            finish_reason=self.tally.finish_reason, token_ids=self._plan.return_token_ids
        )
        document = {"id": None, "object": _OBJECTS[api], "created": None, "model": None, **self._top}
        document["choices"] = [choice]
        document["usage"] = self.tally.usage
        if self._plan.return_token_ids:
            holder = document if api is Api.CHAT else choice
            holder["prompt_token_ids"] = self._prompt_token_ids
        return document

    def _too_large(self) -> StreamBroken:
        return StreamBroken(f"answer over {self._plan.limit} bytes", kind="too_large")


def _encode(document: Mapping[str, Any]) -> bytes:
    """Text with lone surrogates, which only engines can bring, leaves as escapes."""
    try:
        return orjson.dumps(document)
    except TypeError:
        return json.dumps(document, separators=(",", ":")).encode()
