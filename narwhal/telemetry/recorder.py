"""The recorder: one call at the end of each request, one per event; journal, metrics and log agree by it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from narwhal.clock import Clock
from narwhal.model.request import Outcome, RequestRow
from narwhal.telemetry.journal import Journal
from narwhal.telemetry.metrics import RouterMetrics

log = logging.getLogger("narwhal.events")


class JournalRecorder:
    """Implements ports.Recorder over a journal and a metrics registry. Main loop only; a few µs a call."""

    def __init__(self, journal: Journal, metrics: RouterMetrics, *, clock: Clock) -> None:
        self._journal = journal
        self._metrics = metrics
        self._clock = clock

    def request(self, row: RequestRow, outcome: Outcome) -> None:
        self._metrics.request(row, outcome)
        self._journal.request(row)

    def event(self, kind: str, fields: Mapping[str, Any], *, repeated: bool = False) -> None:
        self._metrics.event(kind)
        self._journal.event(kind, self._clock.wall(), fields=fields)
        if not repeated:
            log.info("%s %s", kind, " ".join(f"{name}={value}" for name, value in fields.items()))


class MemoryRecorder:
    """Implements ports.Recorder in lists: for tests, the simulation, and whoever wants no journal.

    Keeps the newest `limit` rows and events; `counts` has every outcome since the start.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self.rows: list[tuple[RequestRow, Outcome]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)

    def request(self, row: RequestRow, outcome: Outcome) -> None:
        self.counts[outcome] += 1
        self.rows.append((replace(row, attempt_failures=list(row.attempt_failures)), outcome))
        del self.rows[: -self._limit]

    def event(self, kind: str, fields: Mapping[str, Any], *, repeated: bool = False) -> None:
        self.events.append((kind, dict(fields)))
        del self.events[: -self._limit]
