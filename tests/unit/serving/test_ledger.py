"""serving/ledger.py: one outcome a request, and none later than the answer that it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from narwhal.model.request import Counters, Outcome, RequestRow
from narwhal.policy.fleet import Fleet
from narwhal.policy.totals import Totals
from narwhal.serving.ledger import Entry, Ledger
from tests.support.clients import KeptStream
from tests.support.own_router import ENGINES
from tests.support.settings import controller_settings, fleet_config
from tests.support.ticking import TickingClock


class Asked:
    """`ports.Inbound` as far as an entry reads it."""

    rid, client_rid, arrived_wall = "r-1", None, 1_800_000_000.0

    def __init__(self) -> None:
        self.stream = KeptStream()


class Kept:
    """`ports.Recorder` in memory."""

    def __init__(self) -> None:
        self.requests: list[Outcome] = []

    def request(self, row: RequestRow, outcome: Outcome) -> None:
        assert row.terminal == outcome.value
        self.requests.append(outcome)

    def event(self, kind: str, fields: Mapping[str, Any], *, repeated: bool = False) -> None:
        raise AssertionError("an entry has no events")


class Rig:
    def __init__(self) -> None:
        fleet = Fleet(fleet_config(*ENGINES, controller=controller_settings(min_decode=3)), {})
        self.totals, self.recorder = Totals("run-1"), Kept()
        self.ledger = Ledger(fleet=fleet, totals=self.totals, recorder=self.recorder, clock=TickingClock())

    def open(self) -> Entry:
        return self.ledger.open(Asked(), 7)  # type: ignore[arg-type]


def test_an_answer_is_counted_when_its_end_leaves_and_only_once() -> None:
    rig = Rig()
    with rig.open() as entry:
        entry.answered()
        assert rig.totals.own == Counters(served=1, offered=1)
        entry.answered()
    assert rig.totals.own == Counters(served=1, offered=1)
    assert rig.recorder.requests == [Outcome.SERVED]


@pytest.mark.parametrize("late", [asyncio.CancelledError(), RuntimeError("late")])
def test_what_comes_after_a_whole_answer_changes_nothing(late: BaseException) -> None:
    rig = Rig()
    with pytest.raises(type(late)), rig.open() as entry:
        entry.answered()
        raise late
    assert rig.totals.own == Counters(served=1, offered=1)
    assert rig.recorder.requests == [Outcome.SERVED]


def test_a_request_without_an_answer_counts_at_its_end() -> None:
    rig = Rig()
    with pytest.raises(RuntimeError), rig.open():
        assert rig.totals.own == Counters()
        raise RuntimeError("no answer")
    assert rig.totals.own == Counters(failed=1, offered=1)
