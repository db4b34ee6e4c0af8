"""Requests that fail wherever they go (failures.md section 9, "The request"). Pure.

A request is known by the digest of its body. A failure's *way* says how it failed, such as
"inference_status:500"; the same way on two engines is one request's doing rather than two engines'.

| request and way | event | next |
| --- | --- | --- |
| unknown | failed on A | remembered with A |
| remembered with A only | failed on A | remembered with A, once more |
| remembered with A only | failed on B | suspected: what it added on A and B is to be taken back |
| suspected | failed on any engine | suspected: what it added there is to be taken back |
| any but suspected | its token count was held against an engine | that too is to be taken back then |
| any | the producer of its KV is ejected | what its transfers added is settled: taken back there already |
| any | 60 s without a failure, or 1,024 newer requests | unknown |

A token count that does not come is no failed request, and suspects none. Not remembered: what never reached
the engine (no connection), and back-pressure, which is nobody's fault.
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
REMEMBERED_S = 60.0
"""Seconds after its last failure."""
UNSENT = frozenset({"connection:connect", "timeout:connect"})
"""Ways in which no byte of the request reached the engine."""

Counted = tuple[str, FailureClass, str, int]
"""One failure that was held against an engine: its ID, the class, the producer of a decode that crossed, the
engine's row of that class to which it counted."""


@dataclass(slots=True)
class _Way:
    """How one request failed in one way: on which engines, what was counted and not yet taken back."""

    engines: set[str] = field(default_factory=set)
    counted: Counter[Counted] = field(default_factory=Counter)


@dataclass(slots=True)
class _Request:
    """`counts`: what its token counts added; `suspected`: it failed in some way on two engines."""

    failed_at: float
    ways: dict[str, _Way] = field(default_factory=dict)
    counts: Counter[Counted] = field(default_factory=Counter)
    suspected: bool = False


class Poison:
    """The newest failed requests, oldest failure first."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: OrderedDict[bytes, _Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def failed(
        self, evidence: LegFailed, now: float, *, row: int = 0, counts: bool = True
    ) -> Mapping[Counted, int] | None:
        """Remembers one failed leg, which is about to count to that `row`, or not. None: no suspicion.

        Otherwise the request is suspected poison: this failure is not to be counted, and what is returned
        (how often; may be empty) had been before.
        """
        if not evidence.request or evidence.way in UNSENT or evidence.failure is FailureClass.OVERLOAD:
            return None
        request = self._request(evidence.request, now)
        way = request.ways.setdefault(evidence.way, _Way())
        way.engines.add(evidence.iid)
        if len(way.engines) < 2:
            if counts and not evidence.again:
                way.counted[evidence.iid, evidence.failure, evidence.peer, row] += 1
            return None
        counted = way.counted + request.counts
        way.counted, request.counts = Counter(), Counter()
        request.suspected = True
        return counted

    def count_failed(self, evidence: CountFailed, now: float, *, row: int) -> bool:
        """A token count is about to be held against its engine, in that `row`. False: it is not to be."""
        if not evidence.request:
            return True
        request = self._request(evidence.request, now)
        if not request.suspected:
            request.counts[evidence.iid, evidence.failure, "", row] += 1
        return not request.suspected

    def settled(self, counted: Counted) -> None:
        """Failures of that kind have been taken back, where they may have been a transfer's."""
        for request in self._requests.values():
            for name, way in request.ways.items():
                if counted in way.counted and is_about_transfer(counted[1], name):
                    del way.counted[counted]

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
            self._requests.popitem(last=False)
        return request

    def _forget_old(self, now: float) -> None:
        while self._requests:
            digest, request = next(iter(self._requests.items()))
            if request.failed_at > now - REMEMBERED_S:
                return
            del self._requests[digest]

    def check_invariants(self) -> None:
        """Raises InvariantViolation where memory is not bounded or a suspect still counts against engines."""
        if len(self._requests) > MOST:
            raise InvariantViolation(f"poison: {len(self._requests)} requests remembered")
        for request in self._requests.values():
            if request.suspected and request.counts:
                raise InvariantViolation("poison: a token count of a suspect still counts")
            for name, way in request.ways.items():
                if len(way.engines) > 1 and way.counted:
                    raise InvariantViolation(f"poison: a suspect's {name} still counts")
