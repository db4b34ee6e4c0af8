"""Holds on their way to the next owner (failures.md section 11). Pure.

| a handoff tells | becomes |
| --- | --- |
| an engine in `inference_sources`, not ejected | held, for that of `inference_holds`, its probe due at once |
| producers, a consumer of ours | across whom that probe goes, from whom it is pulled |
| a timed quarantine with time left | quarantined for as long, from now |
| what cannot be read, or is of no engine of ours | nothing |

The guard of the last engine is asked anew: roles may be others than they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from narwhal.model.effect import ProbeKind
from narwhal.model.handoff import HandoffDocument
from narwhal.model.numbers import seconds
from narwhal.policy.ejections import CARRIED

if TYPE_CHECKING:
    from narwhal.policy.standings import Standings


def export_holds(standings: Standings, now: float) -> dict[str, Any]:
    """The fields of the handoff that tell of holds."""
    checks, held = standings.checks, standings.holding.reasons()
    return {
        "inference_sources": {iid: checks.producers(iid) for iid in held},
        "inference_holds": {
            iid: {"reason": reason, "consumer": checks.consumer(iid)} for iid, reason in held.items()
        },
        "holds": standings.holding.export(now),
    }


def restore_holds(standings: Standings, document: HandoffDocument, *, now: float) -> None:
    """After the ejections of the same document."""
    ours = frozenset(standings.engines)
    for iid in sorted(ours.intersection(document.inference_sources)):
        if standings.is_ejected(iid):
            continue
        told = document.inference_holds.get(iid)
        words = told if isinstance(told, Mapping) else {}
        reason, consumer = (str(words.get(name, "")) for name in ("reason", "consumer"))
        reason = reason or CARRIED
        standings.hold(iid, reason, now=now)
        sources = [one for one in document.inference_sources[iid] if not one or one in ours]
        standings.checks.restored(ProbeKind.INFERENCE, iid, reason=reason, producers=sources, now=now)
        if consumer in ours:
            standings.checks.across(iid, consumer)
    for iid, (left_s, reason) in told_quarantines(document.holds).items():
        if iid in ours and not standings.is_ejected(iid):
            standings.quarantine(iid, now + left_s, reason=reason, now=now)


def told_quarantines(holds: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """What a handoff's `holds` tell: engine ID to the seconds that are left, and the reason; sorted by ID.

    What has no time left, or cannot be read, is left out.
    """
    found = {}
    for iid, told in sorted(holds.items()):
        left = seconds(told.get("remaining_s")) if isinstance(told, Mapping) else None
        if left:
            found[iid] = (left, str(told.get("reason", "")))
    return found
