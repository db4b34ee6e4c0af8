"""Checkpoints: how they fare, and those that no monitor pass writes: a standby's, a fenced router's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from math import inf

from narwhal.clock import Clock
from narwhal.policy.saving import OVERDUE, Saves
from narwhal.ports import Recorder

SAVE_EVERY_S = 1.0
log = logging.getLogger("narwhal.cluster")


class SaveBook:
    """Counts every write of one router, whoever asks for it, and says once how they fare.

    What an owner's writes come to is the `handoff` stage's to tell (`told` is False).
    """

    def __init__(self, *, limit: int, recorder: Recorder) -> None:
        self._saves = Saves(limit=limit)
        self._recorder = recorder

    @property
    def failing(self) -> bool:
        return self._saves.failing

    @property
    def broken(self) -> str:
        """The sentence of a router that is not fit to own for it, "" if it is."""
        return self._saves.broken

    def failed(self, why: str, *, told: bool) -> None:
        if self._saves.failed(why) and told:
            log.warning("the checkpoint cannot be written: %s", why)
            self._recorder.event("checkpoint_failed", {"error": why})

    def written(self, *, told: bool) -> None:
        ended = self._saves.written()
        if ended and told:
            log.warning("the checkpoint is written again (%d writes failed)", ended)
            self._recorder.event("checkpoint_written", {"failed": ended})


class Saver:
    """Main loop only. A write that hangs holds up nothing but the next write."""

    def __init__(self, checkpoint: Callable[[], Awaitable[None]], book: SaveBook, *, clock: Clock) -> None:
        """`checkpoint`: the publisher's; the book has how each of its writes went."""
        self._checkpoint = checkpoint
        self._book = book
        self._clock = clock
        self._due = -inf
        self._writing = False

    async def save(self) -> None:
        """One write, for better or worse."""
        try:
            await self._checkpoint()
        except OSError as error:
            log.debug("a checkpoint was not written: %s", error)

    def due(self) -> bool:
        """A standby's next write may begin: `keep` is it."""
        now = self._clock.now()
        if now < self._due:
            return False
        self._due = now + SAVE_EVERY_S
        if self._writing:
            self._book.failed(OVERDUE, told=True)
        return not self._writing

    async def keep(self) -> None:
        self._writing = True
        try:
            await self.save()
        finally:
            self._writing = False
