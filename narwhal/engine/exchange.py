"""One request and its answer on one connection: what the connection tells, and how it ends.

An exchange ends once, through its future: with a result, or with the EngineError that says why not. It
is watched by the wheel: `look` compares its deadlines with the loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from narwhal.engine.arrivals import Arrivals
from narwhal.engine.wheel import StoodStill, prolonged
from narwhal.errors import EngineError, EngineTimeout, EngineUnreachable, StreamBroken
from narwhal.ports import EngineCall, EngineReply

if TYPE_CHECKING:
    from narwhal.engine.connection import Connection
    from narwhal.engine.verbatim import Verbatim

Result = TypeVar("Result")


@dataclass(slots=True)
class Head:
    """Status and headers (names in lower case, of a repeated one the last) of a final response."""

    status: int
    headers: Mapping[str, str]


class Exchange(Generic[Result]):
    """What fetches and decode legs have in common.

    `started`: a byte of the answer has come. `last_read_at`: loop time of the newest read. `total_due`:
    loop time at which the whole call ends, set by the client, whose waits count too; None without one.
    `verbatim`: takes the reads from here on as long as the connection stands between two chunks.
    `arrivals`: dates the answer, None where its age means nothing; `sent_at`, `not_before`: when it was sent
    for and when its first byte may have come (Clock.now).
    """

    __slots__ = (
        "_reused", "arrivals", "bucket", "call", "connection", "done", "head", "last_read_at", "loop",
        "not_before", "sent_at", "started", "total_due", "verbatim",
    )  # fmt: skip

    def __init__(self, call: EngineCall, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.done: asyncio.Future[Result] = loop.create_future()
        self.connection: Connection | None = None
        self.head: Head | None = None
        self.started = False
        self._reused = False
        self.last_read_at = loop.time()
        self.total_due = None if call.total_s is None else self.last_read_at + call.total_s
        self.bucket: int | None = None
        self.verbatim: Verbatim | None = None
        self.arrivals: Arrivals | None = None
        self.sent_at = self.not_before = -inf

    def again(self) -> Self:
        """The same exchange before anything has happened, with its total still running."""
        raise NotImplementedError

    # --- told by the connection ---

    def attach(self, connection: Connection) -> None:
        self.connection = connection
        self._reused = connection.reused
        self.last_read_at = self.loop.time()
        if self.arrivals is not None:
            self.sent_at = self.not_before = self.arrivals.begin()

    def on_head(self, head: Head) -> None:
        self.head = head

    def on_body(self, data: bytes) -> None:
        raise NotImplementedError

    def on_complete(self) -> None:
        raise NotImplementedError

    def on_lost(self, exc: Exception | None) -> None:
        """The socket is gone. `exc` may be a bug of ours, raised in a callback: it is passed on as it is."""
        if exc is not None and not isinstance(exc, OSError):
            self._end(exc)
        elif self.head is None:
            why = f": {exc}" if exc else ""
            self._end(EngineUnreachable(f"connection lost before a response{why}", iid=self.call.iid))
        else:
            self._end(
                StreamBroken("connection lost inside the response", iid=self.call.iid, kind="early_end")
            )

    def detach(self) -> None:
        """It has ended: lets go of the connection, which may already carry another exchange."""
        self.connection = None
        if self.arrivals is not None:
            self.arrivals.end()

    # --- ends ---

    @property
    def may_repeat(self) -> bool:
        """Lost on a reused connection before the first byte: the engine had closed an idle socket."""
        return self._reused and not self.started

    def fail(self, error: EngineError) -> None:
        self._end(error)
        if self.connection is not None:
            self.connection.abort()

    def _end(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def next_due(self) -> float | None:
        """Loop time of the nearest deadline, None without one."""
        return self.total_due

    def look(self, now: float, stood_still_s: StoodStill) -> float | None:
        """A limit that our own standstills prolong is looked at in each turn of the wheel until it is up."""
        if self.done.done():
            return None
        if self.total_due is not None and now >= self.total_due:
            limit_s, last = self.call.total_s or 0.0, self.total_due + self.call.spare_s
            due = prolonged(self.total_due, limit_s, now=now, stood_still_s=stood_still_s)
            if now < min(due, last):
                return self.next_due()
            self.fail(EngineTimeout(f"no whole answer in {limit_s} s", iid=self.call.iid, limit_s=limit_s))
            return None
        return self.next_due()


class Fetch(Exchange[EngineReply]):
    """Collects a whole answer, at most `limit` bytes of body.

    The age of the answer is that of its first byte: what the engine made may be as old, though its end came
    late. It is older where its head was written earlier.
    """

    __slots__ = ("_body", "_limit", "_size")

    def __init__(
        self, call: EngineCall, loop: asyncio.AbstractEventLoop, *, limit: int, arrivals: Arrivals
    ) -> None:
        super().__init__(call, loop)
        self._limit = limit
        self.arrivals = arrivals
        self._size = 0
        self._body: list[bytes] = []

    def again(self) -> Self:
        assert self.arrivals is not None
        fresh = type(self)(self.call, self.loop, limit=self._limit, arrivals=self.arrivals)
        fresh.total_due = self.total_due
        return fresh

    def on_head(self, head: Head) -> None:
        self.head = head
        date, arrivals = head.headers.get("date"), self.arrivals
        if date is not None and arrivals is not None:
            self.not_before = arrivals.dates.written(
                self.call.iid, date, sent_at=self.sent_at, came=self.not_before, now=arrivals.now()
            )

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            message = f"answer over {self._limit} bytes"
            self.fail(StreamBroken(message, iid=self.call.iid, kind="too_large"))
        else:
            self._body.append(data)

    def on_complete(self) -> None:
        assert self.head is not None
        if not self.done.done():
            body = b"".join(self._body)
            self.done.set_result(EngineReply(self.head.status, self.head.headers, body, self.not_before))
