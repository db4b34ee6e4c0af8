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


def test_of_a_consumer_whose_own_rows_end_all_the_time_no_more_is_kept_than_convicts() -> None:
    rig = Rig()
    rig.aside = {"d1"}
    rig.fail(D1)
    for row in range(9):
        rig.fail(("d0", STREAM, row))
    assert rig.rows.failing["p0"] == {D1: 1, **{("d0", STREAM, row): 1 for row in (6, 7, 8)}}
    rig.aside = set()
    told = rig.fail(D1)
    assert told is not None and told.total() == 5


def test_others_that_fail_with_a_producer_now_and_are_neither_out_nor_held() -> None:
    rig = Rig()
    assert not rig.rows.fails_elsewhere("p0", "d0")
    rig.fail(D0)
    assert not rig.rows.fails_elsewhere("p0", "d0")
    assert rig.rows.fails_elsewhere("p0", "d1")
    rig.aside = {"d0"}
    assert not rig.rows.fails_elsewhere("p0", "d1")
    rig.aside = set()
    rig.rows.end("p0")
    assert not rig.rows.fails_elsewhere("p0", "d1")
