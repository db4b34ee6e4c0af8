"""What a handoff tells of things that have no owner in this version: it goes on to the next owner. Pure.

Lifecycle records are taken as they came and exported so. A machine that comes to own them takes them out of
`state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narwhal.model.engine import Role
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument


class Carried:
    """Empty until a document was taken; replaced whole by the next one."""

    def __init__(self) -> None:
        self._document: HandoffDocument | None = None

    def take(self, document: HandoffDocument) -> None:
        self._document = document

    def state(self, *, roles: Mapping[str, Role], lifecycle: Mapping[str, Any]) -> FleetState:
        """The fleet's part of the handoff: `roles`, `lifecycle` where nothing was carried, and the rest."""
        document = self._document
        if document is None:
            return FleetState(roles=roles, lifecycle=lifecycle)
        return FleetState(roles=roles, lifecycle={**lifecycle, **document.lifecycle})

    def drain_records(self) -> tuple[str, ...]:
        """Engines that a lifecycle record names, in its order; what cannot be read is left out."""
        records = self._document.lifecycle.get("records") if self._document is not None else None
        return tuple(str(one.get("engine")) for one in records or () if isinstance(one, Mapping))
