"""Who may take new requests now, by leg. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from narwhal.model.engine import Leg, Role
from narwhal.policy.cost import EngineLoad
from narwhal.policy.split import ROLE_OF


@dataclass(frozen=True, slots=True)
class Offer:
    """Stands until membership or roles change: `eligible` engines, and by leg the ones to choose from, sorted
    by ID. `consumers`: those for decodes. `lacking`: a leg that has none."""

    eligible: Set[str]
    legs: Mapping[Leg, tuple[EngineLoad, ...]]
    consumers: frozenset[str] = frozenset()
    lacking: Leg | None = None


def make_offer(
    eligible: Set[str],
    *,
    able: Mapping[Leg, Set[str]],
    roles: Mapping[str, Role],
    loads: Mapping[str, EngineLoad],
) -> Offer:
    """Per leg: eligible engines of its role; only without any, unpinned ones of the other role.

    `able`: whom roles and pins let take a leg. `loads` has every engine, sorted by ID.
    """
    legs = {}
    for leg, role in ROLE_OF.items():
        sound = [iid for iid in loads if iid in eligible and iid in able[leg]]
        offered = [iid for iid in sound if roles[iid] is role] or sound
        legs[leg] = tuple(loads[iid] for iid in offered)
    return Offer(
        eligible,
        legs,
        consumers=frozenset(load.iid for load in legs[Leg.DECODE]),
        lacking=next((leg for leg in legs if not legs[leg]), None),
    )
