"""What a handoff tells of things that have no owner in this version: it goes on to the next owner. Pure.

Edges, the KV ledger and lifecycle records are taken as they came and exported as they have become meanwhile
(`narwhal.policy.ageing`). A machine that comes to own one of them takes it out of `state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narwhal.model.engine import Role
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument
from narwhal.policy.ageing import aged


class Carried:
    """Empty until a document was taken; replaced whole by the next one."""

    def __init__(self) -> None:
        self._document: HandoffDocument | None = None
        self._at = 0.0

    def take(self, document: HandoffDocument, now: float) -> None:
        self._document, self._at = document, now

    def state(self, now: float, *, roles: Mapping[str, Role], lifecycle: Mapping[str, Any]) -> FleetState:
        """The fleet's part of the handoff: `roles`, `lifecycle` where nothing was carried, and the rest."""
        document = self._document
        if document is None:
            return FleetState(roles=roles, lifecycle=lifecycle)
        by_s = now - self._at
        return FleetState(
            roles=roles,
            lifecycle={**lifecycle, **document.lifecycle},
            edges=aged(document.edges, by_s),
            kv_ledger=aged(document.kv_ledger, by_s),
        )
