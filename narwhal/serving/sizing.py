"""How many prompt tokens a request has (serving.md section 1.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from narwhal.errors import EngineError
from narwhal.model.engine import Leg
from narwhal.model.evidence import CountFailed
from narwhal.model.placement import Demand
from narwhal.model.request import Api, Deadline, InferenceRequest
from narwhal.policy.fleet import Fleet
from narwhal.serving.leg import Ask, EngineAccess, Place, blamed, engine_call, new_engine_rid
from narwhal.serving.witness import Witness

TOKENIZE = "/tokenize"

MOST_OUTPUT = 1_000_000
"""Tokens. A client may name any limit; beyond this it says nothing about the work to come, and placement
must not count it against an engine."""


class Sizer:
    """Counts token IDs itself, asks the least loaded prefill engine otherwise, estimates where that fails."""

    def __init__(self, access: EngineAccess, fleet: Fleet, *, witness: Witness) -> None:
        self._access = access
        self._fleet = fleet
        self._witness = witness

    async def measure(self, request: InferenceRequest, deadline: Deadline) -> Demand:
        """Never fails the request: a count that does not come is replaced by the estimate."""
        tokens: int | CountFailed | None = request.prompt_ids
        if tokens is None and self._access.settings.tokenize:
            tokens = await self._ask(request, deadline)
        output = min(request.max_tokens or 0, MOST_OUTPUT)
        if isinstance(tokens, int):
            return Demand(tokens, output)
        return Demand(estimate(request, self._access.settings.chars_per_token), output, tokens)

    async def _ask(self, request: InferenceRequest, deadline: Deadline) -> int | CountFailed | None:
        """The count; without one what was said of the engine, if anything was."""
        access = self._access
        now = access.clock.now()
        iid = self._fleet.sizer(now)
        if iid is None:
            return None
        place = Place(iid, new_engine_rid(), deadline)
        left_s = deadline.remaining_s(now)
        call = engine_call(
            access,
            request,
            place=place,
            ask=Ask(Leg.PREFILL, TOKENIZE, access.dialect.tokenize_body(request)),
            limit_s=min(access.settings.tokenize_timeout_s, left_s),
        )
        call.spare_s = left_s - min(access.settings.tokenize_timeout_s, left_s)
        try:
            return access.dialect.read_tokenize(await access.client.fetch(call), iid)
        except EngineError as error:
            fault = blamed(error, Leg.PREFILL, place=place, now=access.clock.now())
            return self._witness.not_counted(fault, request) if isinstance(fault, EngineError) else None


def estimate(request: InferenceRequest, chars_per_token: float) -> int:
    """Prompt characters ÷ `chars_per_token`, at least 1."""
    return max(1, math.ceil(_characters(request) / chars_per_token))


def _characters(request: InferenceRequest) -> int:
    if request.api is Api.CHAT:
        return sum(_content_characters(message) for message in request.fields["messages"])
    prompt = request.fields["prompt"]
    text = prompt if isinstance(prompt, str) else prompt[0]
    return len(text) if isinstance(text, str) else 0


def _content_characters(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    return sum(map(len, _texts(content))) if isinstance(content, list) else 0


def _texts(parts: list[Any]) -> Iterator[str]:
    """Texts of a content list; images and the like have no characters."""
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text
