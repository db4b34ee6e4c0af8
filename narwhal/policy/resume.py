"""May a contracted fleet go on with what a handoff tells, at a resume or a takeover? Pure.

| the document's | unlike ours | then |
| --- | --- | --- |
| engine set, model, restart policy | yes | the whole fleet waits for a wave |
| accepted process of an engine that may take requests | missing | the same |

An engine takes no requests while it is ejected or drained, or while its owner itself awaited its identity:
those owe their proof anyway. Whether the accepted process still runs is looked at afterwards
(`narwhal.policy.identification`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from narwhal.model.handoff import HandoffDocument
from narwhal.policy.identification import read_starts

_SHOWN = 4
_INDIVIDUAL = "individual"


@dataclass(frozen=True, slots=True)
class FleetLikeness:
    """This router's own. `policy`: `recovery.engine_restart_policy`."""

    engines: frozenset[str]
    model: str
    policy: str


def unfit(document: HandoffDocument, ours: FleetLikeness) -> str:
    """Why the fleet must not simply go on, a few words; "" if it may."""
    if set(document.engines) != ours.engines:
        return "the saved state is of another engine set"
    if document.model != ours.model:
        return "the saved state is of another model"
    policy = document.lifecycle.get("engine_restart_policy", _INDIVIDUAL)
    if policy != ours.policy:
        return f"engine_restart_policy was changed from {policy!r:.40} to {ours.policy}"
    missing = sorted(_available(document) - set(read_starts(document.lifecycle.get("process_starts"))))
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
        return f"the saved state has no accepted process of {shown}"
    return ""


def _available(document: HandoffDocument) -> set[str]:
    drained = {_engine(row) for row in _list(document.lifecycle.get("records"))}
    awaited = set(map(str, _list(document.lifecycle.get("awaiting_identity"))))
    return set(document.engines) - set(document.ejected) - drained - awaited


def _engine(row: Any) -> str:
    return str(row.get("engine", "")) if isinstance(row, Mapping) else ""


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
