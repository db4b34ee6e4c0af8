"""The log as a standby reads it: what came, and whether something between is missing.

Every entry follows its predecessor by n + 1 within an epoch; the first entry of an epoch (`acquired`,
n = 1) names in `after` the id that the log ended with. So a reader can tell a hole from a new owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from narwhal.model.handoff import LOG_START, LogEntry, LogPosition
from narwhal.ports import FeedBatch


class Continuity:
    """Judges batches of one reader in order: the incarnation it last saw is remembered."""

    __slots__ = ("_inc",)

    def __init__(self) -> None:
        self._inc = ""

    def batch(
        self, after: LogPosition, entries: Sequence[LogEntry], *, inc: str, top: LogPosition
    ) -> FeedBatch:
        """`inc` and `top` were read *after* the entries, so that a restart between them shows."""
        changed = self._inc not in ("", inc)
        self._inc = inc
        return FeedBatch(entries, gap=changed or top < after or _hole(after, entries), inc=inc, top=top)


def _hole(after: LogPosition, entries: Sequence[LogEntry]) -> bool:
    """From the start of time only a log that begins with an `acquired` is whole."""
    last = after
    for entry in entries:
        if not _follows(last, entry):
            return True
        last = entry.position
    return False


def _follows(last: LogPosition, entry: LogEntry) -> bool:
    if entry.position.epoch == last.epoch:
        return entry.position.n == last.n + 1
    return entry.position.n == 1 and (last == LOG_START or entry.body.get("after") == str(last))
