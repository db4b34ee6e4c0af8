"""Requests that fail wherever they go (failures.md section 9, "The request"). Pure.

A request is known by the digest of its body. A failure's *way* says how it failed, such as
"inference_status:500"; the same way on two engines is one request's doing rather than two engines'.

| request and way | event | next |
| --- | --- | --- |
| unknown | failed on A | remembered with A |
| remembered with A only | failed on A | remembered with A, once more |
| remembered with A only | failed on B | suspected: what it added on A and B is to be taken back |
| suspected | failed on any engine | suspected: what it added there is to be taken back |
| any but suspected | a leg or token count of it counted against an engine | to be taken back then |
| any | failures between two engines were taken back as the pair's or the producer's | its share no more |
| any | `MOST_CHARGES` newer failures were charged to engines | an older one is not taken back |
| any | 60 s without a failure, or 1,024 newer requests | unknown |

A token count that does not come is no failed request, and suspects none. Not remembered: what never reached
the engine (no connection), and back-pressure, which is nobody's fault.

A burst may fail thousands of requests at once: whatever is taken back is found by what it was counted as, and
costs what it takes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from narwhal.errors import InvariantViolation
from narwhal.model.evidence import CountFailed, FailureClass, LegFailed
from narwhal.policy.edges import is_about_transfer

MOST = 1024
"""Failed requests remembered at most."""
MOST_CHARGES = 4 * MOST
"""Failures charged to engines that are remembered at most: one request may fail on one engine for ever."""
REMEMBERED_S = 60.0
"""Seconds after its last failure."""
UNSENT = frozenset({"connection:connect", "timeout:connect"})
"""Ways in which no byte of the request reached the engine."""

Counted = tuple[str, FailureClass, str, int]
"""One failure that was held against an engine: its ID, the class, the producer of a decode that crossed, the
engine's row of that class to which it counted."""


@dataclass(slots=True)
class _Way:
    """How one request failed in one way: on which engines, what was counted and not yet taken back, by
    number."""

    engines: set[str] = field(default_factory=set)
    counted: dict[int, Counted] = field(default_factory=dict)


@dataclass(slots=True)
class _Request:
    """`counts`: where its token counts failed; `suspected`: it failed in some way on two engines."""

    failed_at: float
    ways: dict[str, _Way] = field(default_factory=dict)
    counts: _Way = field(default_factory=_Way)
    suspected: bool = False


class Poison:
    """The newest failed requests, oldest failure first."""

    __slots__ = ("_charges", "_number", "_requests", "_transfers")

    def __init__(self) -> None:
        self._number = 0
        self._charges: OrderedDict[int, _Way] = OrderedDict()
        """Number of each failure that is charged to an engine to where it is, the oldest first."""
        self._transfers: dict[Counted, dict[int, None]] = {}
        """Numbers of those that may be the pair's or the producer's, by what they were counted as."""
        self._requests: OrderedDict[bytes, _Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def failed(self, evidence: LegFailed, now: float) -> Mapping[Counted, int] | None:
        """Remembers one failed leg. None: no suspicion; what is held against its engine is told by `charged`.

        Otherwise the request is suspected poison: this failure is not to be counted, and what is returned
        (how often; may be empty) had been before.
        """
        if not evidence.request or evidence.way in UNSENT or evidence.failure is FailureClass.OVERLOAD:
            return None
        request = self._request(evidence.request, now)
        way = request.ways.setdefault(evidence.way, _Way())
        way.engines.add(evidence.iid)
        if len(way.engines) < 2:
            return None
        request.suspected = True
        return Counter(self._cleared(way)) + Counter(self._cleared(request.counts))

    def charged(self, evidence: LegFailed, *, row: int) -> None:
        """The leg that just failed counted to that `row` of its engine."""
        request = self._requests.get(evidence.request)
        way = request.ways.get(evidence.way) if request is not None else None
        if way is not None:
            counted = evidence.iid, evidence.failure, evidence.peer, row
            self._charge(way, counted, transfer=is_about_transfer(evidence.failure, evidence.way))

    def taken_back(self, counted: Counted, times: int) -> None:
        """So many failed transfers of that kind, the newest, count no longer: others were at fault."""
        numbers = self._transfers.get(counted, {})
        for _ in range(min(times, len(numbers))):
            self._drop(numbers.popitem()[0])

    def count_failed(self, evidence: CountFailed, now: float, *, row: int) -> bool:
        """A token count is about to be held against its engine, in that `row`. False: it is not to be."""
        if not evidence.request:
            return True
        request = self._request(evidence.request, now)
        if not request.suspected:
            self._charge(request.counts, (evidence.iid, evidence.failure, "", row))
        return not request.suspected

    def engines(self, evidence: LegFailed) -> tuple[str, ...]:
        """IDs of the engines on which this request failed in this way, sorted; may be empty."""
        request = self._requests.get(evidence.request)
        way = request.ways.get(evidence.way) if request is not None else None
        return tuple(sorted(way.engines)) if way is not None else ()

    def _request(self, digest: bytes, now: float) -> _Request:
        self._forget_old(now)
        request = self._requests.get(digest)
        if request is None:
            request = self._requests[digest] = _Request(now)
        request.failed_at = now
        self._requests.move_to_end(digest)
        if len(self._requests) > MOST:
            self._forget(self._requests.popitem(last=False)[1])
        return request

    def _charge(self, way: _Way, counted: Counted, *, transfer: bool = False) -> None:
        self._number += 1
        way.counted[self._number] = counted
        self._charges[self._number] = way
        if transfer:
            self._transfers.setdefault(counted, {})[self._number] = None
        if len(self._charges) > MOST_CHARGES:
            self._drop(next(iter(self._charges)))

    def _drop(self, number: int) -> Counted:
        counted = self._charges.pop(number).counted.pop(number)
        numbers = self._transfers.get(counted)
        if numbers is not None:
            numbers.pop(number, None)
            if not numbers:
                del self._transfers[counted]
        return counted

    def _cleared(self, way: _Way) -> list[Counted]:
        return [self._drop(number) for number in tuple(way.counted)]

    def _forget(self, request: _Request) -> None:
        for way in (*request.ways.values(), request.counts):
            self._cleared(way)

    def _forget_old(self, now: float) -> None:
        while self._requests:
            digest, request = next(iter(self._requests.items()))
            if request.failed_at > now - REMEMBERED_S:
                return
            del self._requests[digest]
            self._forget(request)

    def check_invariants(self) -> None:
        """Raises InvariantViolation where memory is not bounded or a suspect still counts against engines."""
        if len(self._requests) > MOST:
            raise InvariantViolation(f"poison: {len(self._requests)} requests remembered")
        self._check_charges()
        for request in self._requests.values():
            if request.suspected and request.counts.counted:
                raise InvariantViolation("poison: a token count of a suspect still counts")
            for name, way in request.ways.items():
                if len(way.engines) > 1 and way.counted:
                    raise InvariantViolation(f"poison: a suspect's {name} still counts")

    def _check_charges(self) -> None:
        ways = [way for one in self._requests.values() for way in (*one.ways.values(), one.counts)]
        charged = {number: counted for way in ways for number, counted in way.counted.items()}
        if charged.keys() != self._charges.keys() or len(charged) > MOST_CHARGES:
            raise InvariantViolation(f"poison: {len(charged)} charges, {len(self._charges)} of them known")
        for counted, numbers in self._transfers.items():
            if not numbers or any(charged.get(number) != counted for number in numbers):
                raise InvariantViolation(f"poison: transfers counted as {counted} that are none")
