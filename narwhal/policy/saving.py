"""How writing the local checkpoint fares, and whether this router is fit to own because of it. Pure.

An owner that cannot write its checkpoint is degraded after `controller.monitor_failure_limit` passes; a
standby that cannot write its own would be so soon after a takeover.

| state | event | next | told |
| --- | --- | --- | --- |
| sound | failed, streak below the limit | failing | yes |
| failing, broken | failed as before | the same, broken from the limit on | no: it is counted |
| failing, broken | failed in another way | the same, broken from the limit on | yes |
| failing, broken | written | sound | yes |
"""

from __future__ import annotations

OVERDUE = "the one before has not ended"
"""A write that hangs: nothing says why."""


class Saves:
    """One router's writes. Attributes are for reading only."""

    def __init__(self, *, limit: int) -> None:
        """`limit`: `controller.monitor_failure_limit`, ≥ 1."""
        self._limit = limit
        self.streak = 0
        """Writes that failed in a row."""
        self.why = ""
        """The last failure's reason, "" after a good write."""

    def failed(self, why: str) -> bool:
        """One write failed; True: this is news."""
        news = why != self.why
        self.streak += 1
        self.why = why
        return news

    def written(self) -> int:
        """One write came to its end: the failures that it ends, 0 for none."""
        ended, self.streak, self.why = self.streak, 0, ""
        return ended

    @property
    def failing(self) -> bool:
        """The last write failed: no claim says that this router would do better."""
        return self.streak > 0

    @property
    def broken(self) -> str:
        """What a standby tells as drift, "" while it is none: so it is not ready to take over."""
        if self.streak < self._limit:
            return ""
        return f"its checkpoint cannot be written: {self.why}"
