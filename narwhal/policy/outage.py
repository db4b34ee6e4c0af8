"""A complete backend outage: verdicts left no engine that may take requests (failures.md section 5). Pure.

| state | seen | next |
| --- | --- | --- |
| none | nobody is eligible, and whoever no operator took is ejected or held | on, told |
| on | an engine is eligible, or it is no verdict that keeps the others out | none, told |
| any | restored | as the handoff tells: its end is told by whoever sees it |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narwhal.model.effect import NOTHING, Effects, tell_fleet
from narwhal.policy.standings import Standings


class Outage:
    """`look` after anything that may have changed who serves: it costs little where nothing has."""

    __slots__ = ("_standings", "_told", "_until", "_version")

    def __init__(self, standings: Standings) -> None:
        self._standings = standings
        self._told = False
        self._version = -1
        self._until = 0.0

    def on(self, now: float) -> bool:
        """At this instant."""
        standings = self._standings
        left = frozenset(standings.engines) - standings.drained
        if not left or standings.eligible(now):
            return False
        return left <= frozenset(standings.ejected()).union(standings.holds(now))

    def look(self, now: float) -> Effects:
        standings = self._standings
        if standings.version == self._version and now < self._until:
            return NOTHING
        self._version, self._until = standings.version, standings.next_change(now)
        on = self.on(now)
        if on == self._told:
            return NOTHING
        self._told = on
        if on:
            reason = "verdicts left no engine that may take requests"
            return (tell_fleet("backend_outage", reason=reason, ejected=list(standings.ejected())),)
        reason = "an engine serves again, or no verdict keeps the others out"
        return (tell_fleet("backend_outage_ended", reason=reason),)

    def restore(self, lifecycle: Mapping[str, Any]) -> None:
        """Whether the owner before saw one."""
        self._told = lifecycle.get("backend_outage") is True
        self._version = -1
