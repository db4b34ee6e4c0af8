"""What is known of demand: its risk events (control.md section 3). Pure.

After one of them, moving engines from decode to prefill waits for new evidence of arrivals.

| event | effect |
| --- | --- |
| note | the newest risk event, one more of its kind |
| restore | the newest one of the owner before, its age counted on from here |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from narwhal.model.numbers import count, seconds


class Risk(StrEnum):
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    MOVE_TO_DECODE = "move_to_decode"


class DemandRisk:
    """The newest risk event and how many there were, also before this owner."""

    __slots__ = ("_at", "_events", "_kind")

    def __init__(self) -> None:
        self._kind = ""
        self._at = 0.0
        self._events: dict[str, int] = {}

    def note(self, risk: Risk, now: float) -> None:
        self._kind, self._at = risk.value, now
        self._events[risk.value] = self._events.get(risk.value, 0) + 1

    def age_s(self, now: float) -> float | None:
        """Seconds since the newest risk event; None while there was none."""
        return now - self._at if self._kind else None

    def export(self, now: float) -> Mapping[str, Any] | None:
        """`demand_risk` of the handoff: {kind, age_s, events: {kind: count}}, None while there was none."""
        if not self._kind:
            return None
        return {"kind": self._kind, "age_s": round(now - self._at, 3), "events": dict(self._events)}

    def restore(self, told: Mapping[str, Any] | None, now: float) -> None:
        """Takes an owner's account, its age as of `now`. What is not in its shape is no risk known here."""
        row = told or {}
        kind, age_s, events = row.get("kind"), seconds(row.get("age_s")), row.get("events")
        self._kind, self._at, self._events = "", 0.0, {}
        if not isinstance(kind, str) or age_s is None:
            return
        self._kind, self._at = kind, now - age_s
        if isinstance(events, Mapping):
            self._events = {str(name): times for name, times in events.items() if count(times)}
