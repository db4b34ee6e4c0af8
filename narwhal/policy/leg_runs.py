"""Engines on which one kind of leg fails for good, while other proofs keep ending their streaks. Pure.

Streaks are kept per class, and what clears a class need not be about the leg that failed: `/health` answers
while every connection of a leg is reset, an engine with both roles is proved by its prefills while each of
its decodes fails, and one that fails in another way each time has no long streak at all.

| kind of leg of an engine | event | next |
| --- | --- | --- |
| sound | it failed, or was refused with a 4xx that need not be about the request | failing, 1 |
| failing n times | the same | failing n + 1; from `eject_after` on suspected, each time |
| failing n times | a request is refused that was refused in this row | failing n times |
| failing n times | one of them was a poisoned request's doing | without that request's failures |
| any | a leg of that kind went well; the engine's inference probe did; it was readmitted | sound |

Back-pressure neither counts nor clears, nor does an answer that may be about the request (400, 413, 422), nor
a failed transfer, of which the accounts of pairs know whose it is. Failures that the streak of one class
counts as well are that streak's to judge.

A request that is refused again and again shows one thing, once: a filter before the engine may dislike it. A
row of nothing but refusals of different requests has the engine held and probed, and refutes no probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass

from narwhal.errors import InvariantViolation
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegAnswered, LegFailed
from narwhal.policy.edges import is_failed_transfer
from narwhal.policy.refusals import ABOUT_REQUESTS


@dataclass(frozen=True, slots=True)
class _Failed:
    """`slow`: it may have been slow and no more. `refused`: it was no failure, the engine said no."""

    request: bytes
    slow: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine is suspected for. `hold`: not one of its failures was mere slowness, which takes nobody
    out unproved. `of_clients`: all it did was to refuse what they asked."""

    reason: str
    hold: bool
    of_clients: bool


class LegRuns:
    """Who fails now. An engine that does well has no entry, so good news cost a look-up."""

    __slots__ = ("_eject_after", "_runs")

    def __init__(self, *, eject_after: int) -> None:
        self._eject_after = eject_after
        self._runs: dict[str, dict[Leg, deque[_Failed]]] = {}

    def failed(self, evidence: LegFailed) -> Run | None:
        """Counts one failed leg; a run when it is long enough."""
        if evidence.failure is FailureClass.OVERLOAD or is_failed_transfer(evidence):
            return None
        one = _Failed(evidence.request, slow=evidence.failure is FailureClass.TIMEOUT)
        return self._counted(evidence, one, last=evidence.detail)

    def answered(self, evidence: LegAnswered) -> Run | None:
        """The same for a 4xx."""
        one = _Failed(evidence.request, refused=True)
        known = self._runs.get(evidence.iid, {}).get(evidence.leg, ())
        if evidence.status in ABOUT_REQUESTS or one in known:
            return None
        return self._counted(evidence, one, last=f"status {evidence.status}")

    def _counted(self, evidence: LegFailed | LegAnswered, one: _Failed, *, last: str) -> Run | None:
        leg = evidence.leg
        run = self._runs.setdefault(evidence.iid, {}).setdefault(leg, deque(maxlen=self._eject_after))
        run.append(one)
        if len(run) < self._eject_after:
            return None
        reason = f"{len(run)} {leg.value} legs in a row failed, last: {last}"
        slow, refused = any(one.slow for one in run), all(one.refused for one in run)
        return Run(reason, hold=not slow, of_clients=refused)

    def succeeded(self, iid: str, leg: Leg) -> None:
        runs = self._runs.get(iid)
        if runs is not None and runs.pop(leg, None) is not None and not runs:
            del self._runs[iid]

    def pardon(self, iid: str, request: bytes) -> None:
        """What this request failed there was its own doing."""
        runs = self._runs.get(iid, {})
        for leg, run in tuple(runs.items()):
            kept = deque((one for one in run if one.request != request), maxlen=self._eject_after)
            if kept:
                runs[leg] = kept
            else:
                self.succeeded(iid, leg)

    def forget(self, iid: str) -> None:
        """Its inference probe was good, or it begins anew after a readmission."""
        self._runs.pop(iid, None)

    @property
    def engines(self) -> Set[str]:
        """Those on which a kind of leg fails now."""
        return self._runs.keys()

    def check_invariants(self) -> None:
        """Raises InvariantViolation where more is remembered than needed."""
        for iid, runs in self._runs.items():
            if not runs or not all(0 < len(run) <= self._eject_after for run in runs.values()):
                raise InvariantViolation(f"{iid}: a run of failed legs that is empty or too long")
