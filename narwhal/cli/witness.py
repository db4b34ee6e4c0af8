"""The one judge of "two owners at once", for the drill, the demonstration and the tests: what each router
answered on /ready, as somebody outside saw it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Yes:
    """One 200 on /ready: the router admitted at some instant between `asked` and `told` (monotonic)."""

    url: str
    epoch: int
    asked: float
    told: float


def overlaps(yeses: Iterable[Yes]) -> list[tuple[Yes, Yes]]:
    """Pairs that cannot both be: an owner's yes, and a yes of an older epoch that was asked for later; or
    two routers under one epoch."""
    found: list[tuple[Yes, Yes]] = []
    by_asked = sorted(yeses, key=lambda yes: yes.asked)
    told = sorted(by_asked, key=lambda yes: yes.told)
    owners: dict[int, Yes] = {}
    newest: Yes | None = None
    at = 0
    for older in by_asked:
        while at < len(told) and told[at].told <= older.asked:
            newest = told[at] if newest is None or told[at].epoch > newest.epoch else newest
            at += 1
        if newest is not None and newest.epoch > older.epoch:
            found.append((newest, older))
        owner = owners.setdefault(older.epoch, older)
        if owner.url != older.url:
            found.append((owner, older))
    return found
