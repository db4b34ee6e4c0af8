"""Clients of a soak, each with its own books: they ask, leave, and send what no engine can answer."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from narwhal.sim.text import answer_text, text_prompt
from tests.soak.checks import Blamed
from tests.soak.script import POISON
from tests.support.crowd import view
from tests.support.load import WHOLE, WRONG, judged
from tests.support.wire import Wire, ask, request_bytes

CLIENTS = 20
PATIENCE_S = 60.0
TRIES = 60
AS_POISON = frozenset({"500 prefill", "500 decode"})
"""An engine's own status, passed on. Any other 500 is the router's."""
PAUSE_S = 0.1
TOO_LONG = {"prompt": "x" * 40, "max_tokens": 40_000}
NOT_A_NUMBER = b'{"prompt": "how warm is a narwhal?", "max_tokens": 4, "temperature": NaN}'


@dataclass(slots=True)
class Books:
    """`how`: endings by word; `odd`: sentences about what must never be seen; `left`: who went away;
    `blamed`: sound questions that were taken for poison."""

    how: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)
    blamed: list[Blamed] = field(default_factory=list)
    left: int = 0

    @property
    def whole(self) -> int:
        return self.how[WHOLE]


class Crew:
    """Runs on a thread and loop of its own from `start` to `stop`; a request begun is finished."""

    def __init__(self, urls: Sequence[str], seed: int, *, clients: int = CLIENTS) -> None:
        self.books = Books()
        self._urls = list(urls)
        self._seed = seed
        self._clients = clients
        self._preferred = 0
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="crew", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Raises what a client died of."""
        self._end.set()
        self._thread.join(4 * PATIENCE_S)
        assert not self._thread.is_alive(), "clients hang"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:
            self._error = error
            raise

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._clients):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        dice = random.Random(f"client {number} of {self._seed}")
        asked = 0
        while not self._end.is_set():
            asked += 1
            prompt = f"client {number} of {self._seed} asks its question {asked}: how deep?"
            (way,) = dice.choices(
                (
                    self._talks,
                    self._leaves_its_head,
                    self._leaves,
                    self._leaves_its_stream,
                    self._errs,
                    self._poisons,
                ),
                weights=(60, 4, 10, 14, 6, 3),
            )
            await way(dice, prompt)
            await asyncio.sleep(dice.expovariate(2.0))

    # --- ways ---------------------------------------------------------------------------------------

    async def _talks(self, dice: random.Random, prompt: str) -> None:
        tokens, streamed = dice.randrange(1, 40), dice.random() < 0.6
        body = {"prompt": prompt, "max_tokens": tokens, "stream": streamed}
        right = answer_text(text_prompt(prompt).seed, tokens)
        how, began = "never served", time.time()
        for _ in range(TRIES):
            how = await self._try(body, right, streamed=streamed)
            if not how.startswith(("503", "Connection", "no answer")):
                break
            self._preferred = (self._preferred + 1) % len(self._urls)
            await asyncio.sleep(PAUSE_S)
        self.books.how[how] += 1
        if how in AS_POISON:
            self.books.blamed.append(Blamed(began, time.time(), f"{how}: {prompt}"))
        elif how == WRONG or how.startswith("500"):
            self.books.odd.append(f"{how}: {prompt}")

    async def _try(self, body: dict[str, Any], right: str, *, streamed: bool) -> str:
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await ask(self._urls[self._preferred], "/v1/completions", body=body)
        except TimeoutError:
            self.books.odd.append(f"no answer in {PATIENCE_S:g} s: {body['prompt']}")
            return "no answer in time"
        except EOFError:
            return "no answer"
        except OSError as error:
            return f"Connection: {type(error).__name__}"
        if answer.status == 200 and not streamed and not answer.complete:
            return "cut"
        return judged(answer, right, streamed=streamed)

    async def _leaves_its_head(self, dice: random.Random, prompt: str) -> None:
        whole = request_bytes("POST", "/v1/completions", body={"prompt": prompt})
        try:
            wire = await Wire.open(self._urls[self._preferred])
            await wire.send(whole[: dice.randrange(1, len(whole))])
            wire.close()
        except OSError:
            return
        self.books.left += 1

    async def _leaves(self, dice: random.Random, prompt: str) -> None:
        """Anywhere from the first leg to the end."""
        await self._view(dice.uniform(0.0, 0.3), prompt, from_start=True)

    async def _leaves_its_stream(self, dice: random.Random, prompt: str) -> None:
        await self._view(dice.uniform(0.0, 0.4), prompt, from_start=False)

    async def _view(self, for_s: float, prompt: str, *, from_start: bool) -> None:
        body = {"prompt": prompt, "max_tokens": 60, "stream": True}
        try:
            viewer = await view(self._urls[self._preferred], body)
        except OSError:
            return
        if not from_start:
            await asyncio.wait((viewer.begun,), timeout=PATIENCE_S)
        await asyncio.sleep(for_s)
        viewer.leave()
        await viewer.over
        self.books.left += 1

    async def _errs(self, dice: random.Random, prompt: str) -> None:
        """Its own fault: 400 from the engine, or from the router."""
        await self._is_refused(dice.choice((TOO_LONG, NOT_A_NUMBER)), "a bad request")

    async def _poisons(self, dice: random.Random, prompt: str) -> None:
        """The same body by many clients, over and over."""
        body = {"prompt": f"a cup of {POISON}", "max_tokens": 4, "stream": dice.random() < 0.5}
        await self._is_refused(body, "poison")

    async def _is_refused(self, body: Any, what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await ask(self._urls[self._preferred], "/v1/completions", body=body)
        except (OSError, EOFError, TimeoutError):
            return
        self.books.how[f"{answer.status} for {what}"] += 1
        ours = answer.status >= 400 and answer.error["type"] == "internal_error"
        if answer.status == 200 or ours:
            self.books.odd.append(f"{answer.status} for {what}: {answer.body[:200]!r}")
