"""What `GET /v1/models` says of the served model, refreshed from the engines beside the monitor pass."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from narwhal.errors import EngineError
from narwhal.model.model_list import read_models
from narwhal.ports import ControlClient

log = logging.getLogger("narwhal.monitor")

PATH = "/v1/models"


class ModelCard:
    """The served model and the longest context an engine reports for it, in tokens.

    `max_model_len` is None until an engine has told it, and the last known value afterwards: a fleet whose
    engines are all away still has a model. One engine is asked a pass: the one that told it last, over the
    connection that is still open, or the next one where that told nothing.
    """

    def __init__(
        self, model: str, *, control: ControlClient, engines: Callable[[], Sequence[str]], timeout_s: float
    ) -> None:
        """`engines` gives the IDs worth asking now, may be empty; `timeout_s` bounds one question."""
        self.model = model
        self.max_model_len: int | None = None
        self._control = control
        self._engines = engines
        self._timeout_s = timeout_s
        self._turn = 0
        self._asking: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """Asks one engine, unless a question is still open. Never waits.

        Raises what the last question ended with if that was not the engine's doing.
        """
        task = self._asking
        if task is not None:
            if not task.done():
                return
            self._asking = None
            task.result()
        engines = self._engines()
        if not engines:
            return
        iid = engines[self._turn % len(engines)]
        self._asking = asyncio.create_task(self._ask(iid), name="model-card")

    async def _ask(self, iid: str) -> None:
        try:
            # A client's own timeouts may count between reads; an engine that drips must not last for ever.
            async with asyncio.timeout(self._timeout_s):
                reply = await self._control.get(iid, PATH, timeout_s=self._timeout_s)
        except (EngineError, TimeoutError) as error:
            log.debug("%s did not tell its models: %s", iid, error)
            self._turn += 1
            return
        length = longest_context(reply.body, self.model) if reply.status == 200 else None
        if length is None:
            self._turn += 1
        else:
            self.max_model_len = length

    async def aclose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
            self._asking = None


def longest_context(body: bytes, model: str) -> int | None:
    """`max_model_len` of `model` in an engine's model list; None where the list does not tell it."""
    return read_models(body).get(model)
