"""What a store answers and nobody here can use: said once in the log, not at every try.

Silence is the lease keeper's to tell (`narwhal.cluster.sight`): here it is about answers, such as a user
without the right for one command, that would otherwise be tried again for ever without a word.
"""

from __future__ import annotations

import logging
from types import TracebackType

from narwhal.errors import StoreError, StoreProtocolError

log = logging.getLogger("narwhal.cluster")


class Bugs:
    """What callbacks raise, which nobody awaits: `with bugs:` keeps the first for who raises it.

    An event loop only logs such an error, and the process would go on half alive.
    """

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: Exception | None = None

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.first = self.first or error
        return True

    def check(self) -> None:
        """Raises what was kept."""
        if self.first is not None:
            raise self.first


class Troubles:
    """By what was tried ("roster", "totals"...). `over` only after the store was asked and answered: what is
    not due proves nothing."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, int]] = {}
        """What was said last, and how often it was met since the first time."""

    def met(self, what: str, error: StoreError) -> None:
        """Logs an answer that cannot be used, unless the last one was the same."""
        if not isinstance(error, StoreProtocolError):
            return
        text, (told, times) = str(error), self._told.get(what, ("", 0))
        self._told[what] = (text, times + 1)
        if told != text:
            log.warning("%s: %s", what, text)

    def over(self, what: str) -> None:
        """Logs the end, if there was something to end."""
        _, times = self._told.pop(what, ("", 0))
        if times:
            log.warning("%s: the store's answers can be used again (%d could not)", what, times)
