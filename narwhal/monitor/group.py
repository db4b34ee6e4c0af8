"""The readmission checks of engines that come back in one change: a wave, a cohort (failures.md section 7).

| phase | checks | begins when |
| --- | --- | --- |
| alone | `health` to `generation` of every member | at once |
| ring | `kv_transfer`: everyone's KV to the next one | every member did well alone |
| last | `final_health` of every member | every transfer was good |

A member whose phase did not begin has fewer checks, and its validation is not conclusive. A cohort's members
were alone before: their ring and last checks are made whatever becomes of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from narwhal.model.effect import ProbeWanted
from narwhal.model.evidence import Check, CohortProved, Validated
from narwhal.monitor.probe_legs import we_are_cancelled
from narwhal.monitor.validation import (
    OPEN,
    Checking,
    Result,
    Step,
    Transfer,
    Validation,
    left_open,
    transferred,
)
from narwhal.policy.readmission import FAILED, KV_TRANSFER, ORDER, PASSED, SKIPPED

AT_ONCE = 8
"""Members that are looked at together: the control pool may have one connection."""

Edges = Callable[[Sequence[str]], list[tuple[str, str]]]
"""Producer and consumer of each transfer that proves these members."""

K = TypeVar("K")
R = TypeVar("R")


async def gathered(call: Callable[[K], Awaitable[R]], keys: Iterable[K]) -> list[R]:
    """What `call` gives for each key, in their order, `AT_ONCE` of them under way at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def placed(key: K) -> R:
        async with places:
            return await call(key)

    return list(await asyncio.gather(*(placed(key) for key in keys)))


class Group:
    """`steps`: the seven of `readmission_steps`, of which `kv_transfer` is replaced by the ring."""

    def __init__(self, steps: Sequence[Step], checking: Checking, *, ring: Edges) -> None:
        place = ORDER.index(KV_TRANSFER)
        self._alone = Validation(steps[:place], start=checking.processes.start)
        self._last = Validation(steps[place + 1 :])
        self._legs = checking.legs
        self._ring = ring

    async def run(self, members: Sequence[str]) -> dict[str, Validated]:
        """All checks, how they ended by member: no phase begins before all did well in the one before. Never
        raises for what an engine does."""
        told = dict(zip(members, await gathered(self._alone.run, members), strict=True))
        for phase in (self._crossed, self._ended):
            if not all(map(_well, told.values())):
                return {iid: _unfinished(one) for iid, one in told.items()}
            told = await phase(told)
        return told

    async def prove(self, members: Sequence[str]) -> dict[str, Validated]:
        """Ring and last check of members that did well alone: one that fails keeps nobody else from it."""
        return await self._ended(await self._crossed({iid: Validated(iid, ()) for iid in members}))

    async def _ended(self, told: Mapping[str, Validated]) -> dict[str, Validated]:
        """With the last check of those who did well."""
        last = await gathered(self._last.run, [iid for iid, one in told.items() if _well(one)])
        return dict(told) | {
            one.iid: replace(
                told[one.iid],
                checks=(*told[one.iid].checks, *one.checks),
                conclusive=one.conclusive,
                why=one.why,
            )
            for one in last
        }

    async def _crossed(self, told: Mapping[str, Validated]) -> dict[str, Validated]:
        """With `kv_transfer`."""
        crossed = await self._transfers(tuple(told))
        return {iid: _with(one, crossed[iid]) for iid, one in told.items()}

    async def _transfers(self, members: Sequence[str]) -> dict[str, Result]:
        """`kv_transfer` by member."""
        made = await gathered(self._transfer, self._ring(members))
        return {
            iid: _crossing([one for one in made if iid in (one.producer, one.consumer)], iid)
            for iid in members
        }

    async def _transfer(self, pair: tuple[str, str]) -> Transfer:
        return await transferred(self._legs.produce(*pair), pair)


def _crossing(made: Sequence[Transfer], iid: str) -> Result:
    """`made`: the transfers that it took part in."""
    if not made:
        return SKIPPED, "no member to exchange KV with"
    own = [one for one in made if one.tells_of(iid)]
    if own:
        return FAILED, "; ".join(map(str, own))
    broken = [one for one in made if one.error is not None]
    return OPEN if broken else PASSED, "; ".join(map(str, broken or made))


def _with(told: Validated, result: Result) -> Validated:
    if result[0] == OPEN:
        return left_open(told, KV_TRANSFER, why=result[1])
    return replace(told, checks=(*told.checks, Check(KV_TRANSFER, *result)))


def _well(told: Validated) -> bool:
    return told.conclusive and all(check.outcome != FAILED for check in told.checks)


def _unfinished(told: Validated) -> Validated:
    """Another member kept it from its other checks."""
    return replace(told, conclusive=False) if _well(told) else told


class CohortLook:
    """The probe of engines that come back together after a complete outage."""

    def __init__(self, group: Group) -> None:
        self._group = group

    async def look(self, probe: ProbeWanted) -> CohortProved:
        try:
            told = await self._group.prove(probe.members)
        except asyncio.CancelledError:
            if we_are_cancelled():
                raise
            told = {iid: Validated(iid, (), conclusive=False) for iid in probe.members}
        return CohortProved(tuple(told.values()))
