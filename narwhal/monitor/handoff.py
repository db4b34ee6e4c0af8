"""Stage `handoff`: the owner's state to the shared store and to the checkpoint file."""

from __future__ import annotations

import asyncio
import logging

from narwhal.errors import StoreError, StoreUnreachable
from narwhal.model.lease import PublishReply
from narwhal.ports import StatePublisher

log = logging.getLogger("narwhal.monitor")

CLOSE_S = 1.0
"""How long the end of the pass waits for a checkpoint that is being written."""


class HandoffStage:
    """Starts both writes at once; neither waits for the other.

    The snapshot runs beside the pass and is taken in by a later one, so a store that hangs costs the pass
    nothing. What the store says (or does not) is no stage failure: the lease deadline decides. A
    checkpoint that cannot be written is one, and so is one that hangs.
    """

    name = "handoff"
    needs_control = True

    def __init__(self, publisher: StatePublisher) -> None:
        self._publisher = publisher
        self._publishing: asyncio.Task[PublishReply | None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self.unpublished = 0
        """Snapshots that the store did not take, in a row."""

    async def run(self, now: float) -> None:
        bug = self._take_in_snapshot()
        if self._publishing is None:
            self._publishing = asyncio.create_task(self._publisher.snapshot(), name="handoff-snapshot")
        await self._write_checkpoint()
        if bug is not None:
            raise bug

    def _take_in_snapshot(self) -> BaseException | None:
        """Counts what the last snapshot came to; returns what cannot be blamed on the store."""
        task = self._publishing
        if task is None or not task.done():
            return None
        self._publishing = None
        error = asyncio.CancelledError("the snapshot was cancelled") if task.cancelled() else task.exception()
        if error is None:
            self.unpublished = 0
            return None
        if not isinstance(error, StoreError):
            return error
        self.unpublished += 1
        # That the store is silent is told by the lease keeper: once, for all that goes there.
        silence = isinstance(error, StoreUnreachable) and not error.kind
        if self.unpublished == 1 and not silence:
            log.warning("the handoff could not be published: %s", error)
        return None

    async def _write_checkpoint(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._publisher.checkpoint(), name="handoff-checkpoint")
        # The stage's deadline bounds this wait, not the write: a thread on a hanging disk cannot be
        # stopped, and a second one behind it would only hang too.
        await asyncio.wait({self._writing})
        task, self._writing = self._writing, None
        task.result()

    async def aclose(self) -> None:
        """Ends a snapshot that still runs and lets a write that has begun end: a thread cannot be
        stopped, and an old checkpoint must not come to rest over the last one."""
        if self._publishing is not None:
            self._publishing.cancel()
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=CLOSE_S)
            self._writing.cancel()
        tasks = [task for task in (self._publishing, self._writing) if task is not None]
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                log.debug("the last handoff write ended with %r", ended)
        self._publishing = self._writing = None
