"""What a handoff tells of things that have no owner in this version: it goes on to the next owner. Pure.

What of `lifecycle` nobody owns (waves, outages) is taken as it came and exported so; drains and process
starts are `narwhal.policy.upkeep`'s, which puts its own over them.
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
