"""May an engine take new requests: the one truth table, and the guard of the last engine. Pure.

| drained | breaker | hold | standing |
| --- | --- | --- | --- |
| yes | any | any | out: an operator took it, only an operator's readmission brings it back |
| no | ejected | any | probe-only: the readmission checks decide |
| no | closed | inference, quarantine or unverified | probe-only |
| no | closed | none | eligible |

Unverified: after a cautious takeover an engine owes a good health check before it is used, and in a
contracted fleet nobody is used before every identity is settled (`narwhal.policy.identification`).

Guard (failures.md section 3): a drift verdict, a quarantine and an inference hold never take the last
engine that can serve a leg; a confirmed failure may.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import StrEnum

from narwhal.model.engine import Leg
from narwhal.model.standing import HoldKind


class Standing(StrEnum):
    """ELIGIBLE takes new requests, PROBE_ONLY our own probes, OUT neither by itself."""

    ELIGIBLE = "eligible"
    PROBE_ONLY = "probe-only"
    OUT = "out"


def standing(*, ejected: bool, hold: HoldKind | None, unverified: bool, drained: bool) -> Standing:
    """The truth table."""
    if drained:
        return Standing.OUT
    if ejected or hold is not None or unverified:
        return Standing.PROBE_ONLY
    return Standing.ELIGIBLE


def takes_last(iid: str, *, able: Mapping[Leg, Set[str]], eligible: Set[str]) -> bool:
    """True when a leg that `iid` can serve would be left without an eligible engine if it went.

    `able`: leg to the engines that roles and pins permit.
    """
    others = eligible - {iid}
    return any(iid in who and others.isdisjoint(who) for who in able.values())
