"""Engines on which one kind of leg fails for good, while other proofs keep ending their streaks. Pure.

Streaks are kept per class, and what clears a class need not be about the leg that failed: `/health` answers
while every connection of a leg is reset, an engine with both roles is proved by its prefills while each of
its decodes fails, and one that fails in another way each time has no long streak at all.

| kind of leg of an engine | event | next |
| --- | --- | --- |
| sound | it failed, or was refused with a 4xx that need not be about the request | failing, 1 |
| failing n times | the same | failing n + 1; from `eject_after` on suspected, each time |
| failing n times | a request is refused that was refused in this row | failing n times |
| failing n times | one of them was a poisoned request's doing, the pair's or the producer's | without those |
| any | a leg of that kind went well; the engine's inference probe did; it was readmitted | sound |

Kinds are prefills, decodes, and pulls: decodes of KV that another engine holds. A good decode of the engine's
own KV pulled nothing, and ends no row of pulls; a good pull ends both. Failed pulls, as far as they are
charged to the engine, count with its decodes where they are its own rather than a producer's or a pair's:
KV of two producers failed, or KV of one, which fails with nobody else now. Its probe, across, decides anyway.

Back-pressure neither counts nor clears, nor does an answer that may be about the request (400, 413, 422).
Failures that the streak of one class counts as well are that streak's to judge.

A request that is refused again and again shows one thing, once: a filter before the engine may dislike it. A
row of nothing but refusals of different requests has the engine held and probed, and refutes no probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from enum import Enum

from narwhal.errors import InvariantViolation
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegAnswered, LegFailed, LegSucceeded
from narwhal.policy.edge_map import PARTNERS
from narwhal.policy.edges import is_failed_transfer
from narwhal.policy.poison import Counted
from narwhal.policy.refusals import ABOUT_REQUESTS


class _Kind(Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    PULL = "pull"


_KIND = {Leg.PREFILL: _Kind.PREFILL, Leg.DECODE: _Kind.DECODE}


@dataclass(frozen=True, slots=True)
class _Failed:
    """`slow`: it may have been slow and no more. `refused`: it was no failure, the engine said no.
    `failure` and `peer`: of a pull, its class and whose KV it was."""

    request: bytes
    slow: bool = False
    refused: bool = False
    failure: FailureClass | None = None
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine is suspected for. `hold`: not one of its failures was mere slowness, which takes nobody
    out unproved. `of_clients`: all it did was to refuse what they asked. `producers`: whose KV it failed to
    pull, the newest first."""

    reason: str
    hold: bool
    of_clients: bool
    producers: tuple[str, ...]


_Rows = dict[_Kind, deque[_Failed]]


class LegRuns:
    """Who fails now. An engine that does well has no entry, so good news cost a look-up."""

    __slots__ = ("_eject_after", "_fails_elsewhere", "_runs")

    def __init__(self, *, eject_after: int, fails_elsewhere: Callable[[str, str], bool]) -> None:
        """`fails_elsewhere`: does a producer's KV fail now with others than this consumer."""
        self._eject_after = eject_after
        self._fails_elsewhere = fails_elsewhere
        self._runs: dict[str, _Rows] = {}

    def failed(self, evidence: LegFailed, *, charged: bool) -> Run | None:
        """Counts one failed leg; a run when it is long enough. `charged`: it is held against its engine."""
        pulled, failure = is_failed_transfer(evidence), evidence.failure
        if failure is FailureClass.OVERLOAD or (pulled and not charged):
            return None
        if pulled:
            one = _Failed(evidence.request, failure=failure, peer=evidence.peer)
            return self._counted(evidence, one, kind=_Kind.PULL, last=evidence.detail)
        one = _Failed(evidence.request, slow=failure is FailureClass.TIMEOUT)
        return self._counted(evidence, one, kind=_KIND[evidence.leg], last=evidence.detail)

    def answered(self, evidence: LegAnswered) -> Run | None:
        """The same for a 4xx."""
        one, kind = _Failed(evidence.request, refused=True), _KIND[evidence.leg]
        known = self._runs.get(evidence.iid, {}).get(kind, ())
        if evidence.status in ABOUT_REQUESTS or one in known:
            return None
        return self._counted(evidence, one, kind=kind, last=f"status {evidence.status}")

    def _counted(
        self, evidence: LegFailed | LegAnswered, one: _Failed, *, kind: _Kind, last: str
    ) -> Run | None:
        iid, leg = evidence.iid, evidence.leg
        rows = self._runs.setdefault(iid, {})
        rows.setdefault(kind, deque(maxlen=self._eject_after)).append(one)
        row = rows[kind] if leg is Leg.PREFILL else self._decodes(iid, rows)
        if len(row) < self._eject_after:
            return None
        reason = f"{len(row)} {leg.value} legs in a row failed, last: {last}"
        slow, refused = any(one.slow for one in row), all(one.refused for one in row)
        producers = dict.fromkeys(one.peer for one in reversed(row) if one.peer)
        return Run(reason, hold=not slow, of_clients=refused, producers=tuple(producers))

    def _decodes(self, iid: str, rows: _Rows) -> list[_Failed]:
        """Its failed decodes, with its pulls as far as they are its own. At most as long as a row."""
        own, pulls = rows.get(_Kind.DECODE, ()), rows.get(_Kind.PULL, ())
        producers = {one.peer for one in pulls}
        if len(producers) < PARTNERS and any(self._fails_elsewhere(one, iid) for one in producers):
            pulls = ()
        return [*own, *pulls][-self._eject_after :]

    def succeeded(self, evidence: LegSucceeded) -> None:
        pulled = (_Kind.PULL,) if evidence.peer else ()
        self._end(evidence.iid, (_KIND[evidence.leg], *pulled))

    def pardon(self, iid: str, request: bytes) -> None:
        """What this request failed there was its own doing."""
        for kind, row in tuple(self._runs.get(iid, {}).items()):
            self._keep(iid, kind, left=(one for one in row if one.request != request))

    def taken_back(self, counted: Counted, times: int) -> None:
        """So many pulls of that kind, the newest, were the pair's or the producer's."""
        iid, failure, peer, _ = counted
        row, left = [], times
        for one in reversed(self._runs.get(iid, {}).get(_Kind.PULL, ())):
            if left > 0 and (one.failure, one.peer) == (failure, peer):
                left -= 1
            else:
                row.append(one)
        if left < times:
            self._keep(iid, _Kind.PULL, left=reversed(row))

    def forget(self, iid: str) -> None:
        """Its inference probe was good, or it begins anew after a readmission."""
        self._runs.pop(iid, None)

    def _keep(self, iid: str, kind: _Kind, *, left: Iterable[_Failed]) -> None:
        row = deque(left, maxlen=self._eject_after)
        if row:
            self._runs[iid][kind] = row
        else:
            self._end(iid, (kind,))

    def _end(self, iid: str, kinds: Iterable[_Kind]) -> None:
        rows = self._runs.get(iid)
        if rows is None:
            return
        for kind in kinds:
            rows.pop(kind, None)
        if not rows:
            del self._runs[iid]

    @property
    def engines(self) -> Set[str]:
        """Those on which a kind of leg fails now."""
        return self._runs.keys()

    def check_invariants(self) -> None:
        """Raises InvariantViolation where more is remembered than needed."""
        for iid, runs in self._runs.items():
            if not runs or not all(0 < len(run) <= self._eject_after for run in runs.values()):
                raise InvariantViolation(f"{iid}: a run of failed legs that is empty or too long")
