"""Whether one more request may enter (serving.md section 1.1). Pure."""

from __future__ import annotations

from narwhal.model.settings import ServingSettings


class Admission:
    """The in-flight limit of one router.

    `limit` is `max_concurrent` where given (above 0), else `serving.max_connections`. Every request
    counts from its arrival, before its body is read, until its response ends.
    """

    __slots__ = ("limit", "margin", "mode")

    def __init__(self, settings: ServingSettings, *, max_concurrent: int = 0) -> None:
        self.limit = max_concurrent or settings.max_connections
        self.margin = settings.admission_margin
        self.mode = "open"
        """The mode in force, whatever the file asks for: nothing here predicts."""

    def admits(self, inflight: int) -> bool:
        """`inflight` includes the request in question."""
        return inflight <= self.limit
