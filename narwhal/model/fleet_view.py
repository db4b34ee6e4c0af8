"""What others may see of the fleet's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from narwhal.model.engine import Role


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fields of the handoff document that the fleet owns, under the document's names.

    `roles` has every configured engine. The others rest at their empty values while no failure, hold
    or drain is on record.
    """

    roles: Mapping[str, Role]
    lifecycle: Mapping[str, Any]
    ejected: tuple[str, ...] = ()
    ejections: Mapping[str, Any] = field(default_factory=dict)
    inference_sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inference_holds: Mapping[str, Any] = field(default_factory=dict)
    holds: Mapping[str, Any] = field(default_factory=dict)
    streaks: Mapping[str, Any] = field(default_factory=dict)
    edges: Any = field(default_factory=list)
    kv_ledger: Any = field(default_factory=dict)
    demand_risk: Mapping[str, Any] | None = None
