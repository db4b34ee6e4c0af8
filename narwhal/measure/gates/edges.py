"""Over which edges a check hands KV. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from narwhal.model.engine import EngineSpec, Role

Edge = tuple[str, str]
"""Producer and consumer."""


def edges_of(engines: Sequence[EngineSpec], *, ring: bool) -> list[Edge]:
    """Producer and consumer of each handoff to try; empty in a fleet of one.

    Each producer and each consumer is in one at least, as roles (and pins, in a ring) permit.
    """
    if ring:
        follows = zip(engines, [*engines[1:], *engines[:1]], strict=True)
        pairs = [pair for pair in follows if _may(pair[0], Role.PREFILL) and _may(pair[1], Role.DECODE)]
        return [(one.iid, other.iid) for one, other in pairs if one.iid != other.iid]
    producers, consumers = (_takers(engines, role) for role in (Role.PREFILL, Role.DECODE))
    edges = []
    for turn in range(max(len(producers), len(consumers)) if producers else 0):
        one = producers[turn % len(producers)]
        places = range(turn, turn + len(consumers))
        others = (consumers[place % len(consumers)].iid for place in places)
        if (other := next((iid for iid in others if iid != one.iid), None)) is not None:
            edges.append((one.iid, other))
    return list(dict.fromkeys(edges))


def _takers(engines: Sequence[EngineSpec], role: Role) -> list[EngineSpec]:
    """Engines of the role, or, where none is, the unpinned of the other one."""
    return [spec for spec in engines if spec.role is role] or [spec for spec in engines if not spec.pin]


def _may(spec: EngineSpec, role: Role) -> bool:
    return spec.role is role or not spec.pin
