"""What a handoff tells of things that have no owner in this version: it goes on to the next owner. Pure.

Ejections, holds, streaks, edges, the KV ledger and lifecycle records are taken as they came and exported as
they have become meanwhile (`narwhal.policy.ageing`). A machine that comes to own one of them takes it from
here and out of `state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeVar

from narwhal.model.engine import Role
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument
from narwhal.policy.ageing import aged

V = TypeVar("V")


class Carried:
    """Empty until a document was taken; replaced whole by the next one."""

    def __init__(self) -> None:
        self._document: HandoffDocument | None = None
        self._engines: Set[str] = frozenset()
        self._at = 0.0

    def take(self, document: HandoffDocument, now: float, *, engines: Set[str]) -> None:
        """Of engines that are not ours nothing is kept."""
        self._document, self._at, self._engines = document, now, engines

    def state(self, now: float, *, roles: Mapping[str, Role], lifecycle: Mapping[str, Any]) -> FleetState:
        """The fleet's part of the handoff: `roles`, `lifecycle` where nothing was carried, and the rest."""
        document = self._document
        if document is None:
            return FleetState(roles=roles, lifecycle=lifecycle)
        by_s = now - self._at
        return FleetState(
            roles=roles,
            lifecycle={**lifecycle, **document.lifecycle},
            ejected=tuple(iid for iid in document.ejected if iid in self._engines),
            inference_sources=self._ours(document.inference_sources),
            holds=aged(self._ours(document.holds), by_s),
            streaks=self._ours(document.streaks),
            edges=aged(document.edges, by_s),
            kv_ledger=aged(document.kv_ledger, by_s),
        )

    def _ours(self, by_engine: Mapping[str, V]) -> dict[str, V]:
        return {iid: value for iid, value in by_engine.items() if iid in self._engines}
