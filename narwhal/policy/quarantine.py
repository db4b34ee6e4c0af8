"""What brought the quarantine of one engine, and how long it lasts for that (failures.md section 3). Pure.

| event | then |
| --- | --- |
| a failure asks for an end | it lasts to the latest that any of them asked for |
| an account is taken back: others were at fault | for as long as the rest asked for |
| more than `MOST` requests brought it | of the oldest it is forgotten which it was |

An engine that dies fails thousands of legs at once: one more costs the same however many there were, and
what is taken back costs what it takes. What remains of a forgotten request is whose KV failed to come.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from narwhal.model.evidence import FailureClass

MOST = 1024
"""Requests by which causes are known: as many as are remembered for having failed (`policy.poison`)."""
_SLACK = 16


class OfRequest(NamedTuple):
    """What one request met in one way."""

    request: bytes
    way: str


class OfKv(NamedTuple):
    """Failures of one class that the transfer of a producer's KV may have caused."""

    producer: str
    failure: FailureClass


Account = OfRequest | OfKv
"""On whose account a failure may turn out to be."""


class Cause(NamedTuple):
    """A failure, as far as others may be found to be at fault."""

    request: OfRequest | None = None
    kv: OfKv | None = None


OWN = Cause()
"""Nobody else can be found to be at fault."""


class _Asked(NamedTuple):
    until: float
    reason: str


class Quarantine:
    """`until`: when it ends, -inf once nothing asks for it. `reason`: of the oldest cause."""

    __slots__ = ("_brought", "_by_account", "_ends", "_number", "_requests", "reason", "until")

    def __init__(self) -> None:
        self.until, self.reason = -inf, ""
        self._brought: OrderedDict[Cause, _Asked] = OrderedDict()
        """The oldest first."""
        self._by_account: dict[Account, dict[Cause, None]] = {}
        self._requests: OrderedDict[OfRequest, None] = OrderedDict()
        self._number = 0
        self._ends: list[tuple[float, int, Cause]] = []
        """Heap, the latest end first, negated. Entries of causes that ask for another end by now are void."""

    def __len__(self) -> int:
        return len(self._brought)

    def bring(self, cause: Cause, until: float, *, reason: str) -> None:
        """It asks for that end. A cause that had asked before keeps place and reason, and the later end."""
        before = self._brought.get(cause)
        if before is None:
            self._enter(cause)
        if before is None or until > before.until:
            self._ask(cause, _Asked(until, reason if before is None else before.reason))
        if len(self._requests) > MOST:
            self._blur(next(iter(self._requests)))
        self._look()

    def take_back(self, account: Account) -> bool:
        """What was on that account asks for nothing any longer. True: nothing else does."""
        for cause in tuple(self._by_account.get(account, ())):
            self._drop(cause)
        self._look()
        return not self._brought

    def _blur(self, request: OfRequest) -> None:
        """Its causes are kept without it, as older than all others."""
        for cause in tuple(self._by_account[request]):
            asked, rest = self._drop(cause), Cause(kv=cause.kv)
            before = self._brought.get(rest)
            if before is None:
                self._enter(rest)
            if before is None or asked.until > before.until:
                self._ask(rest, _Asked(asked.until, asked.reason if before is None else before.reason))
            self._brought.move_to_end(rest, last=False)

    def _ask(self, cause: Cause, asked: _Asked) -> None:
        self._brought[cause] = asked
        self._number += 1
        heappush(self._ends, (-asked.until, self._number, cause))
        if len(self._ends) > 2 * len(self._brought) + _SLACK:
            self._ends = [(-one.until, n, cause) for n, (cause, one) in enumerate(self._brought.items())]
            heapify(self._ends)

    def _enter(self, cause: Cause) -> None:
        for account in cause:
            if account is not None:
                self._by_account.setdefault(account, {})[cause] = None
        if cause.request is not None:
            self._requests[cause.request] = None

    def _drop(self, cause: Cause) -> _Asked:
        for account in cause:
            if account is None:
                continue
            causes = self._by_account[account]
            del causes[cause]
            if not causes:
                del self._by_account[account]
                if isinstance(account, OfRequest):
                    del self._requests[account]
        return self._brought.pop(cause)

    def _look(self) -> None:
        while self._ends:
            end, _, cause = self._ends[0]
            asked = self._brought.get(cause)
            if asked is not None and asked.until == -end:
                break
            heappop(self._ends)
        self.until = -self._ends[0][0] if self._ends else -inf
        self.reason = next(iter(self._brought.values())).reason if self._brought else ""
