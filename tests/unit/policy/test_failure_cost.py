"""What one more failed leg costs in Python calls: the same after thousands of them as after hundreds.

Counted, not timed. An engine that dies fails thousands of legs at once, and the renewal of the lease waits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from narwhal.model.engine import Leg
from narwhal.model.evidence import Evidence, FailureClass, LegFailed, LegSucceeded
from tests.unit.policy.test_judgement import fleet_of

NOW = 100.0
FEW, MANY = 500, 4000


def lost(iid: str, request: bytes, *, peer: str = "p0") -> LegFailed:
    failure = FailureClass.INFERENCE_STATUS
    return LegFailed(iid, Leg.DECODE, failure, "inference_status:500", "500", peer=peer, request=request)


def a_producers_kv(times: int) -> Iterator[Evidence]:
    """On two consumers in turn, so that each third one convicts it."""
    for number in range(times):
        yield lost(("d0", "d1")[number % 2], b"%d" % number)


def a_consumers_streams(times: int) -> Iterator[Evidence]:
    for number in range(times):
        yield lost("d0", b"%d" % number, peer=("p0", "p1")[number % 2])


def decodes_between_good_prefills(times: int) -> Iterator[Evidence]:
    """Each of them ends the streak of the consumer, and begins a new row there."""
    for number in range(times):
        yield lost("d0", b"%d" % number)
        yield LegSucceeded("d0", Leg.PREFILL)


def one_request(times: int) -> Iterator[Evidence]:
    """That its client repeats, on the only engine that can take it."""
    for _ in range(times):
        yield lost("d0", b"the same", peer="")


def calls(evidence: Iterator[Evidence], *, quarantine_s: float) -> int:
    fleet = fleet_of("p0 p1 d0 d1", failure_quarantine_s=quarantine_s)
    count, seen = 0, list(evidence)

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        for number, one in enumerate(seen):
            fleet.step(one, NOW + number * 1e-5)
    finally:
        sys.setprofile(None)
    fleet.check_invariants()
    return count


@pytest.mark.parametrize("quarantine_s", [0.0, 60.0])
@pytest.mark.parametrize(
    "burst", [a_producers_kv, a_consumers_streams, decodes_between_good_prefills, one_request]
)
def test_a_failure_costs_as_much_as_the_one_before(burst: Any, quarantine_s: float) -> None:
    few, many = (calls(burst(times), quarantine_s=quarantine_s) / times for times in (FEW, MANY))
    assert many <= 1.2 * few, f"calls a failure: {few:.0f} after {FEW}, {many:.0f} after {MANY}"
