"""Whether one more request may enter, and how long it may wait (serving.md section 1.1). Pure."""

from __future__ import annotations

from narwhal.model.settings import ServingSettings
from narwhal.policy.waiting_line import T, WaitingLine


class Admission:
    """The in-flight limit of one router and the queue before it.

    `limit` is `max_concurrent` where given (above 0), else `serving.max_connections`. Every request
    counts from its arrival, before its body is read, until its response ends, whether it waits or not.
    """

    __slots__ = ("_queue_timeout_s", "capacity", "limit", "margin", "mode", "request_timeout_s")

    def __init__(self, settings: ServingSettings, *, max_concurrent: int = 0) -> None:
        self.limit = max_concurrent or settings.max_connections
        self.capacity = settings.queue_capacity
        self.margin = settings.admission_margin
        self.mode = "open"
        """The mode in force, whatever the file asks for: nothing here predicts."""
        self._queue_timeout_s = settings.queue_timeout_s
        self.request_timeout_s = settings.request_timeout_s

    def admits(self, inflight: int) -> bool:
        """`inflight` includes the request in question."""
        return inflight <= self.limit + self.capacity

    @property
    def full(self) -> str:
        """Why a request is turned away."""
        waiting = f" and {self.capacity} wait" if self.capacity else ""
        return f"{self.limit} requests are in flight{waiting}: the limit"

    def line(self) -> WaitingLine[T]:
        """The places and the line, all free."""
        return WaitingLine(limit=self.limit, capacity=self.capacity)

    def waits_until(self, now: float, *, arrived_at: float) -> float:
        """When a wait that begins now is over: `queue_timeout_s`, and never past the request's deadline."""
        return min(now + self._queue_timeout_s, arrived_at + self.request_timeout_s)
