"""Measures the points of one engine, which must have no other work meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from narwhal.errors import NarwhalError
from narwhal.measure.legs import Legs
from narwhal.measure.listener import Listener
from narwhal.measure.prompts import fresh_prompt
from narwhal.model.sample import Phase, Point, Sample

WINDOW_TOKENS = 24
"""Tokens of each stream that a decode sample spans, once all of them decode."""
LONGEST_ANSWER = 4096
IDLE_WITHIN_S = 10.0
_POLL_S = 0.02
_CALIBRATION_WORDS = 40


class MeasureFailed(NarwhalError):
    """One sentence: which point could not be measured, and what would help."""


class Sweep:
    """One engine's. `version` is its vLLM version, `max_model_len` its longest context in tokens."""

    def __init__(self, legs: Legs, iid: str, *, version: str, max_model_len: int) -> None:
        self._legs = legs
        self._iid = iid
        self._version = version
        self._longest = max_model_len
        self._tokens_a_word = 1.0

    async def calibrate(self, run: str) -> None:
        """How many tokens a word is. `run` names this run: its prompts are in no cache."""
        self._run = run
        await self._settle()
        prompt = fresh_prompt(f"{run}/calibrate", _CALIBRATION_WORDS)
        tokens, _ = await self._legs.once(self._iid, prompt)
        self._tokens_a_word = tokens / _CALIBRATION_WORDS

    async def measure(self, point: Point, repeat: int) -> Sample:
        """Raises EngineError, IdentityError and MeasureFailed."""
        await self._settle()
        await self._legs.forget(self._iid)
        if point.phase is Phase.PREFILL:
            tokens, seconds = await self._legs.once(self._iid, self._prompt(point, repeat, stream=0))
        else:
            tokens, seconds = await self._decode(point, repeat)
        return Sample(self._iid, point, repeat, tokens, seconds, self._version)

    def _prompt(self, point: Point, repeat: int, *, stream: int) -> str:
        seed = f"{self._run}/{self._iid}/{point}/{repeat}/{stream}"
        return fresh_prompt(seed, round(point.tokens / self._tokens_a_word))

    async def _count(self, prompt: str) -> int:
        """By the engine; a fleet that does without /tokenize gets the calibrated estimate."""
        if self._legs.may_count:
            return await self._legs.count(self._iid, prompt)
        return round((prompt.count(" ") + 1) * self._tokens_a_word)

    async def _settle(self) -> None:
        """Waits until the engine has nothing to do: what was aborted ends a moment later."""
        due = self._legs.now() + IDLE_WITHIN_S
        while not (load := await self._legs.load(self._iid)).idle:
            if self._legs.now() > due:
                raise MeasureFailed(
                    f"{self._iid} has {load.running} running and {load.waiting} waiting requests: "
                    "measure an engine that has no other work"
                )
            await asyncio.sleep(_POLL_S)

    async def _decode(self, point: Point, repeat: int) -> tuple[int, float]:
        """Resident KV tokens and seconds between tokens, while all requests of the point decode."""
        prompts = [self._prompt(point, repeat, stream=stream) for stream in range(point.requests)]
        # Prompts of as many words are not of as many tokens, and each has to leave room for its answer.
        counts = [await self._count(prompt) for prompt in prompts]
        room = min(LONGEST_ANSWER, self._longest - max(counts) - 1)
        together = Together(self._iid, point.requests, now=self._legs.now)
        legs = [
            asyncio.create_task(
                self._legs.listen(self._iid, self._legs.request(prompt, room), kv=None, listener=listener)
            )
            for prompt, listener in zip(prompts, together.listeners, strict=True)
        ]
        watch = asyncio.create_task(together.heard_enough.wait())
        try:
            await asyncio.wait({watch, *legs}, return_when=asyncio.FIRST_COMPLETED)
            self._check(point, together, legs=legs)
        finally:
            for task in (watch, *legs):
                task.cancel()
            await asyncio.gather(watch, *legs, return_exceptions=True)
        if together.interval_s <= 0:
            raise MeasureFailed(f"{self._iid}: {point.words}: tokens came all at once, something buffers")
        return sum(counts) + together.generated, together.interval_s

    def _check(self, point: Point, together: Together, *, legs: list[asyncio.Task[None]]) -> None:
        """A stream that ended before the window did: by an error, or because the others never began."""
        if together.heard_enough.is_set():
            return
        for leg in legs:
            if leg.done():
                leg.result()
        raise MeasureFailed(
            f"{self._iid}: {point.words}: only {together.speaking} requests decoded at once; "
            "measure smaller batches (--max-requests) or raise the engine's --max-num-seqs"
        )


class Together:
    """Listens to the streams of one batch: from the moment all of them speak, to enough tokens of each.

    Each read costs the same however many streams there are: it is part of what is measured.
    """

    def __init__(self, iid: str, requests: int, *, now: Callable[[], float]) -> None:
        self.heard_enough = asyncio.Event()
        self.listeners = [
            Listener(iid, now, heard=partial(self._heard, index), reads_text=False)
            for index in range(requests)
        ]
        self.speaking = 0
        self._spoke = [False] * requests
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._short = requests
        """Streams that have not had their window yet."""

    @property
    def generated(self) -> int:
        """Tokens of all streams that were resident halfway through the window."""
        return sum(begin + end for begin, end in zip(self._begins, self._ends, strict=True)) // 2

    @property
    def interval_s(self) -> float:
        """Mean over the streams; each from its first to its last token inside the window."""
        spans = [
            (listener.ticks[end - 1] - listener.ticks[begin]) / (end - 1 - begin)
            for listener, begin, end in zip(self.listeners, self._begins, self._ends, strict=True)
        ]
        return sum(spans) / len(spans)

    def _heard(self, index: int, before: int) -> None:
        """A read brought tokens to stream `index`, which had `before` of them."""
        if self._begins:
            enough = self._begins[index] + WINDOW_TOKENS
            if before <= enough < len(self.listeners[index].ticks):
                self._short -= 1
                if not self._short:
                    self._ends = [len(listener.ticks) for listener in self.listeners]
                    self.heard_enough.set()
            return
        if not self._spoke[index]:
            self._spoke[index] = True
            self.speaking += 1
            if self.speaking == len(self.listeners):
                # The token that a stream got last may have waited for another one's prefill.
                self._begins = [len(listener.ticks) for listener in self.listeners]
