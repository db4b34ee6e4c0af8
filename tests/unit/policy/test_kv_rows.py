"""Failed decodes of one producer's KV in a row, and which of them tell of the producer."""

from __future__ import annotations

import pytest

from narwhal.model.evidence import FailureClass
from narwhal.policy.edge_map import Charge, Row
from narwhal.policy.kv_rows import KvRows

STREAM = FailureClass.STREAM
D0, D1, D2 = [(f"d{number}", STREAM, 0) for number in range(3)]


class Rig:
    def __init__(self) -> None:
        self.aside: set[str] = set()
        self.rows = KvRows(eject_after=3, aside=lambda iid: iid in self.aside)

    def fail(self, *charges: Charge) -> Row | None:
        told = None
        for charge in charges:
            told = self.rows.failed("p0", charge)
        return told


def test_three_failures_on_two_consumers_tell_of_the_producer_once() -> None:
    rig = Rig()
    assert rig.fail(D0, D0) is None
    assert rig.fail(D1) == {D0: 2, D1: 1}
    assert rig.fail(D1, D1) is None


def test_however_many_on_one_consumer_tell_nothing_of_it() -> None:
    assert Rig().fail(*[D0] * 9) is None


def test_what_failed_on_a_consumer_that_is_aside_waits_for_its_probe() -> None:
    rig = Rig()
    rig.aside = {"d0"}
    assert rig.fail(D0, D0, D1) is None
    rig.aside = set()
    assert rig.fail(D1) == {D0: 2, D1: 2}


def test_those_that_are_aside_are_no_witnesses_beside_others() -> None:
    rig = Rig()
    rig.aside = {"d2"}
    assert rig.fail(D2, D0, D1) is None
    assert rig.fail(D0) == {D0: 2, D1: 1}


@pytest.mark.parametrize("iid", ["d0", "p0"])
def test_an_engine_that_begins_anew_leaves_nothing(iid: str) -> None:
    rig = Rig()
    rig.fail(D0, D0)
    rig.rows.forget(iid)
    assert rig.fail(D1, D2) is None
    assert rig.fail(D2) == {D1: 1, D2: 2}


def test_what_was_not_its_own_is_taken_from_its_row() -> None:
    rig = Rig()
    rig.fail(D0, D0)
    rig.rows.less("p0", Row({D0: 1}))
    rig.rows.less("p1", Row({D0: 1}))
    assert rig.fail(D1) is None
    rig.rows.end("p0")
    assert rig.fail(D1, D0) is None
