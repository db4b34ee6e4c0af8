"""Eyes on a soak: what the routers say of themselves and what the store counts, asked over and over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import redis

from tests.soak.cluster import Cluster, Seat

EVERY_S = 0.2
TOTALS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Poll:
    """What an owner said between `asked` and `told` (Unix seconds). `held` has the kind of each hold."""

    router: str
    epoch: int
    asked: float
    told: float
    ejected: frozenset[str]
    held: dict[str, str]
    draining: frozenset[str]
    roles: dict[str, str]

    @property
    def out(self) -> frozenset[str]:
        """Engines that take no new request."""
        return self.ejected | self.draining | frozenset(self.held)


@dataclass(frozen=True, slots=True)
class TotalsSight:
    at: float
    by_run: dict[str, dict[str, int]]


@dataclass(slots=True)
class Sights:
    polls: list[Poll] = field(default_factory=list)
    totals: list[TotalsSight] = field(default_factory=list)


def poll_of(name: str, state: dict[str, Any], *, asked: float, told: float) -> Poll | None:
    """None from a router that does not own."""
    if state["ha"]["role"] != "active" or not state["ha"]["epoch"]:
        return None
    roles = {iid: role for role, iids in state["pools"].items() for iid in iids}
    held = dict.fromkeys(state["quarantined"], "held")
    held |= {iid: str(row["kind"]) for iid, row in state["holds"].items()}
    return Poll(
        name,
        int(state["ha"]["epoch"]),
        asked,
        told,
        frozenset(state["ejected"]),
        held,
        frozenset(state["draining"]),
        roles,
    )


class Watch:
    """From `start` to `stop`: a thread for each router and one for the store.

    `on_error()`: one of them can look no more, so nothing that follows would be judged; `stop` raises."""

    def __init__(self, cluster: Cluster, *, on_error: Callable[[], None]) -> None:
        self._on_error = on_error
        self.sights = Sights()
        self._cluster = cluster
        self._end = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._routers, seat), daemon=True)
            for seat in cluster.seats
        ]
        self._threads.append(
            threading.Thread(target=self._guarded, args=(self._store, cluster.seats[0]), daemon=True)
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60.0)
        if self._errors:
            raise self._errors[0]

    def _guarded(self, work: Any, seat: Seat) -> None:
        try:
            work(seat)
        except BaseException as error:
            self._errors.append(error)
            self._on_error()
            raise

    def _routers(self, seat: Seat) -> None:
        while not self._end.wait(EVERY_S):
            asked = time.time()
            state = seat.document("/narwhal/state")
            if state is None or "ha" not in state:
                continue
            poll = poll_of(seat.name, state, asked=asked, told=time.time())
            if poll is not None:
                self.sights.polls.append(poll)

    def _store(self, seat: Seat) -> None:
        while not self._end.wait(TOTALS_EVERY_S):
            with suppress(redis.RedisError):
                self.sights.totals.append(TotalsSight(time.time(), self._cluster.totals()))


def journal_rows(seats: Sequence[Seat]) -> dict[str, list[dict[str, Any]]]:
    """Router name to the rows of its journal over all its lives."""
    return {seat.name: seat.router.journal() for seat in seats}
