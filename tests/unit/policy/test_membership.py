"""The truth table of who may take new requests, and the guard of the last engine."""

from __future__ import annotations

from itertools import product

import pytest

from narwhal.model.engine import Leg
from narwhal.model.standing import HoldKind
from narwhal.policy.membership import Standing, standing, takes_last

HOLDS = (None, HoldKind.QUARANTINE, HoldKind.INFERENCE)


@pytest.mark.parametrize(("ejected", "hold", "unverified"), [*product((False, True), HOLDS, (False, True))])
def test_every_row_of_the_truth_table(ejected: bool, hold: HoldKind | None, unverified: bool) -> None:
    well = not ejected and hold is None and not unverified
    expected = Standing.ELIGIBLE if well else Standing.PROBE_ONLY
    facts = {"ejected": ejected, "hold": hold, "unverified": unverified}
    assert standing(**facts, drained=False) is expected  # type: ignore[arg-type]
    assert standing(**facts, drained=True) is Standing.OUT  # type: ignore[arg-type]


P, D = Leg.PREFILL, Leg.DECODE


@pytest.mark.parametrize(
    ("who", "eligible", "last"),
    [
        ("p0", {"p0", "p1", "d0"}, False),
        ("p0", {"p0", "d0"}, False),  # d0 is not pinned: it can prefill
        ("p0", {"p0"}, True),
        ("p0", {"p0", "x0"}, True),  # x0 is pinned to decode
        ("x0", {"x0", "p0"}, False),  # p0 can decode
        ("x0", {"x0"}, True),
        ("x0", {"p0"}, False),  # it is out already, and p0 does both
        ("p0", set(), True),  # out already, and nothing else is left
    ],
)
def test_the_last_engine_of_a_leg(who: str, eligible: set[str], last: bool) -> None:
    able = {P: {"p0", "p1", "d0"}, D: {"p0", "p1", "d0", "x0"}}
    assert takes_last(who, able=able, eligible=eligible) is last
