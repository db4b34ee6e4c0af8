"""What a simulated engine counted and saw (`GET /sim/stats`)."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any

from narwhal.sim.http import Request

_BODY_BYTES_KEPT = 65536


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived, of its body the beginning; `at` is loop time."""

    leg: str
    request: Request
    at: float
    body_bytes: int

    def document(self) -> dict[str, Any]:
        request = self.request
        return {
            "leg": self.leg,
            "at": self.at,
            "method": request.method,
            "path": request.path,
            "headers": dict(request.headers),
            "body": request.body.decode("utf-8", "replace"),
            "body_bytes": self.body_bytes,
        }


class Stats:
    """Counters since the start or the last reset; the last few requests with headers and bodies.

    `frames` counts token events (of plain answers: tokens), `aborted` requests whose client went away,
    `failed` those that the engine broke off, `refused` answers of 4xx and 5xx before any work, `fenced`
    (by leg) those of a superseded epoch, which count nowhere else.
    """

    def __init__(self, recorded: int) -> None:
        self.legs: Counter[str] = Counter()
        self.fenced: Counter[str] = Counter()
        self.seen: deque[Seen] = deque(maxlen=recorded)
        self.reset()

    def reset(self) -> None:
        self.frames = self.completed = self.aborted = self.failed = self.refused = 0
        self.failed_transfers = 0
        self.transfers = 0
        self.legs.clear()
        self.fenced.clear()
        self.seen.clear()

    def saw(self, leg: str, request: Request, *, at: float) -> None:
        self.legs[leg] += 1
        size = len(request.body)
        if size > _BODY_BYTES_KEPT:
            request = replace(request, body=request.body[:_BODY_BYTES_KEPT])
        self.seen.append(Seen(leg, request, at, size))

    def document(self) -> dict[str, Any]:
        return {
            "frames": self.frames,
            "completed": self.completed,
            "aborted": self.aborted,
            "failed": self.failed,
            "refused": self.refused,
            "fenced": dict(self.fenced),
            "transfers": self.transfers,
            "failed_transfers": self.failed_transfers,
            "legs": dict(self.legs),
            "requests": [seen.document() for seen in self.seen],
        }
