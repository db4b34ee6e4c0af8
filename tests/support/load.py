"""An open load of short requests, each with a prompt of its own, and how every one of them ended.

The text of a right answer is known beforehand, so an answer from another request's KV blocks is seen.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from narwhal.sim.text import answer_text, text_prompt
from tests.support.wire import Answer, ask

WHOLE = "whole"
WRONG = "WRONG TEXT"
PATIENCE_S = 40.0
_PADDING = re.compile("x{1000,}")
"""What the fault `huge` adds to every token."""


@dataclass(frozen=True, slots=True)
class Got:
    """One request: `rid` is what it called itself, `sent` and `ended` are Unix seconds, `how` a few words."""

    rid: str
    sent: float
    ended: float
    how: str


def judged(answer: Answer, right: str, *, streamed: bool) -> str:
    """`whole`, `WRONG TEXT`, `cut` with how it was told, or the status and the error's code or type."""
    if answer.status != 200:
        error = answer.error
        return f"{answer.status} {error['code'] or error['type']}"
    if not streamed:
        return _whole(answer.json()["choices"][0]["text"], right)
    if "[DONE]" in answer.events and answer.complete:
        return _whole(answer.text, right)
    told = any("error" in event for event in answer.documents)
    return "cut, error event" if told and answer.complete else "cut"


def _whole(text: str, right: str) -> str:
    return WHOLE if _PADDING.sub("", text) == right else WRONG


async def ask_for(url: str, prompt: str, rid: str, *, tokens: int, **fields: Any) -> str:
    """One completion; how it ended."""
    body: Mapping[str, Any] = {"prompt": prompt, "max_tokens": tokens, **fields}
    right = answer_text(text_prompt(prompt).seed, tokens)
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(url, "/v1/completions", body=body, x_request_id=rid)
    except TimeoutError:
        return f"nothing in {PATIENCE_S:g} s"
    except (OSError, EOFError) as error:
        return type(error).__name__
    return judged(answer, right, streamed=fields.get("stream") is True)


class Load:
    """`rate` requests a second from entering to leaving, every second one streamed; it waits for the last.

    They come at random (a Poisson process) and have up to `tokens` tokens each: requests one by one, and
    answers of one length, make every engine meet the same partner again and again.
    """

    def __init__(self, url: str, label: str, *, rate: float, tokens: int) -> None:
        self.got: list[Got] = []
        self.sent = 0
        self._url = url
        self._label = label
        self._every_s = 1 / rate
        self._tokens = tokens
        self._dice, self._gaps = random.Random(label), random.Random(label)
        self._open: set[asyncio.Task[None]] = set()
        self._pacer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Load:
        self._pacer = asyncio.create_task(self._pace())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._pacer is not None
        self._pacer.cancel()
        await asyncio.gather(self._pacer, return_exceptions=True)
        await asyncio.gather(*self._open)

    async def _pace(self) -> None:
        due = time.monotonic()
        while True:
            task = asyncio.create_task(self._one(self.sent))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            self.sent += 1
            due = max(due + self._gaps.expovariate(1 / self._every_s), time.monotonic() - self._every_s)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self, number: int) -> None:
        rid, sent = f"{self._label}-{number}", time.time()
        prompt = f"{rid}: what do narwhals eat under the ice in winter?"
        tokens = self._dice.randint(1, self._tokens)
        how = await ask_for(self._url, prompt, rid, tokens=tokens, stream=number % 2 == 0)
        self.got.append(Got(rid, sent, time.time(), how))
