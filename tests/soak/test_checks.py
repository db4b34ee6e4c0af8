"""Each check of the soak sees what it is there for, and nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.soak.checks import (
    AFTER_DRIFT_S,
    AFTERWARDS_S,
    Blamed,
    Event,
    Leg,
    Outage,
    Spells,
    befell_the_spared,
    blamed_without_cause,
    ejections_without_cause,
    events_of,
    legs_on_engines_that_were_out,
    outages,
    roles_emptied,
    rows_unlike_totals,
    totals_that_do_not_add_up,
)
from tests.soak.cluster import Cluster
from tests.soak.run import Soak
from tests.soak.watch import Poll, TotalsSight

ROLES = {"e0": "prefill", "e1": "prefill", "e2": "decode", "e3": "decode"}


def poll(at: float, *ejected: str, epoch: int = 1, router: str = "a", **held: str) -> Poll:
    return Poll(router, epoch, at, at + 0.01, frozenset(ejected), held, frozenset(), ROLES)


def event(at: float, kind: str, iid: str, hold: str = "", reason: str = "a reason") -> Event:
    return Event("a", at, kind, iid, reason, hold)


@pytest.mark.parametrize("error", [AssertionError("not there"), AttributeError("no such field")])
def test_a_troublemaker_that_ends_by_any_error_is_a_breach(error: Exception) -> None:
    def fails() -> None:
        raise error

    run = Soak(cast("Cluster", None), 1, minutes=60)
    run.guarded(fails)
    assert run.trouble == [f"{type(error).__name__}: {error}"]


def test_two_looks_that_agree_are_an_outage_and_more_make_it_longer() -> None:
    polls = [poll(1.0, "e0"), poll(1.2, "e0", e1="inference"), poll(1.4, "e0"), poll(1.6)]
    assert outages(polls, []) == [Outage(1, "e0", 1.01, 1.4)]


def test_an_engine_that_came_and_went_between_two_looks_was_not_out_all_the_time() -> None:
    polls = [poll(1.0, "e0"), poll(1.2, "e0"), poll(1.4, "e0")]
    told = [event(1.3, "readmission", "e0"), event(1.35, "ejection", "e0"), event(1.1, "hold", "e9")]
    assert outages(polls, told) == [Outage(1, "e0", 1.01, 1.2)]


def test_outages_of_two_owners_are_not_one() -> None:
    polls = [poll(1.0, "e0"), poll(1.2, "e0", epoch=2, router="b"), poll(1.4, "e0", epoch=2, router="b")]
    assert outages(polls, []) == [Outage(2, "e0", 1.21, 1.4)]


def test_a_leg_on_an_engine_that_was_out_is_seen() -> None:
    out = [Outage(1, "e0", 10.0, 20.0)]
    late = Leg(15.0, "e0", "decode", 1)
    assert list(legs_on_engines_that_were_out([late], out))
    fine = [
        Leg(10.5, "e0", "decode", 1),  # was under way
        Leg(15.0, "e0", "probe", 1),
        Leg(15.0, "e0", "health", 1),
        Leg(15.0, "e1", "decode", 1),
        Leg(15.0, "e0", "decode", 2),
        Leg(20.5, "e0", "decode", 1),
    ]
    assert not list(legs_on_engines_that_were_out(fine, out))


def test_a_hold_that_empties_a_role_is_seen_and_an_ejection_may() -> None:
    polls = [poll(1.0, "e0", e2="inference"), poll(2.0)]
    pinned = frozenset(ROLES)
    assert list(roles_emptied(polls, [event(1.5, "hold", "e1", "inference")], pinned))
    assert list(roles_emptied(polls, [event(1.5, "hold", "e3", "quarantine")], pinned))
    assert list(roles_emptied(polls, [event(1.5, "ejection", "e1", reason="decode drift")], pinned))
    assert not list(roles_emptied(polls, [event(1.5, "ejection", "e1")], pinned))
    held = event(1.5, "hold", "e1", "inference")
    assert not list(roles_emptied(polls, [held], frozenset({"e0", "e1", "e2"})))
    assert not list(roles_emptied(polls, [event(1.4, "readmission", "e0"), held], pinned))


def test_a_hold_that_becomes_an_ejection_and_ends_is_followed() -> None:
    polls = [poll(1.0, "e0"), poll(2.0)]
    told = [
        event(1.2, "hold_ended", "e0", "inference"),
        event(1.3, "ejection", "e1"),
        event(1.4, "readmission", "e1"),
        event(1.5, "hold", "e1", "inference"),
    ]
    assert len(list(roles_emptied(polls, told, frozenset(ROLES)))) == 1


def test_an_ejection_of_an_engine_that_had_no_fault_is_seen() -> None:
    spells = Spells()
    spells.begin("e0", 10.0)
    spells.begin("e0", 12.0)
    spells.end("e0", 20.0)
    spells.begin("e1", 30.0)
    late, later = 20.0 + AFTERWARDS_S, 20.0 + AFTER_DRIFT_S
    fine = [event(at, "ejection", iid) for at, iid in ((11.0, "e0"), (late, "e0"), (99.0, "e1"))]
    fine += [event(50.0, "hold", "e0"), event(later, "ejection", "e0", reason="decode drift: it is slow")]
    assert not list(ejections_without_cause(fine, spells))
    for at, iid in ((9.0, "e0"), (late + 0.1, "e0"), (29.0, "e1"), (11.0, "e2")):
        assert len(list(ejections_without_cause([*fine, event(at, "ejection", iid)], spells))) == 1


def test_a_verdict_on_an_engine_that_is_never_at_fault_is_seen() -> None:
    def row(kind: str, iid: str, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "at": 1.0, "iid": iid, "reason": "a reason", **fields}

    fine = [
        row("hold", "e1", hold="inference"),
        row("hold", "e0", hold="quarantine"),
        row("hold", "e0", hold="inference", enforced=False),
        row("edge_avoided", "e4", producer="e1"),
        row("edge_avoided", "e1", producer="e0"),
        row("readmission", "e0"),
        {"kind": "role", "at": 1.0},
    ]
    spells = Spells()
    spells.begin("e1", 50.0)
    fine += [
        row("hold", "e0", hold="inference", at=51.0),
        row("hold_ended", "e0", hold="inference", at=53.0),
        {**row("hold", "e0", hold="inference", at=51.5), "reason": "3 of its decodes failed, on e1, e2"},
        row("hold_ended", "e4", hold="quarantine", at=53.0),
    ]
    spared = {"e0", "e4"}
    assert not list(befell_the_spared({"a": fine}, spared, spells))
    for wrong in (
        row("ejection", "e4"),
        row("hold", "e0", hold="inference"),
        row("edge_avoided", "e4", producer="e0"),
        row("hold", "e0", hold="inference", at=49.0),  # nobody was ill
        row("hold", "e4", hold="inference", at=51.0),  # nothing cleared it
        row("hold", "e0", hold="inference", at=53.5),  # nor this one
        row("ejection", "e0", at=51.0),
        {**row("hold", "e0", hold="inference", at=51.0), "reason": "3 of its decodes failed, on e2, e3"},
    ):
        assert len(list(befell_the_spared({"a": fine, "b": [wrong]}, spared, spells))) == 1


def totals(**counters: int) -> TotalsSight:
    return TotalsSight(0.0, {"run-1": counters})


def test_a_sound_question_that_is_taken_for_poison_is_seen_unless_two_engines_were_ill() -> None:
    spells = Spells()
    spells.begin("e0", 10.0)
    spells.begin("e1", 20.0)
    spells.end("e1", 21.0)
    blamed = [Blamed(12.0, 13.0, "early"), Blamed(19.5, 20.5, "both"), Blamed(60.0, 61.0, "late")]
    told = list(blamed_without_cause(blamed, spells))
    assert [words.rpartition(": ")[2] for words in told] == ["early", "late"]


def test_totals_that_do_not_add_up_or_go_back_are_seen() -> None:
    good = totals(offered=3, served=2, failed=1, unserved=9)
    more = totals(offered=4, served=3, failed=1, unserved=9)
    assert not list(totals_that_do_not_add_up([good, more]))
    assert list(totals_that_do_not_add_up([more, good]))
    assert list(totals_that_do_not_add_up([totals(offered=3, served=2)]))
    assert list(totals_that_do_not_add_up([good, TotalsSight(1.0, {})]))


def request(terminal: str) -> dict[str, Any]:
    return {"kind": "request", "run": "run-1", "terminal": terminal}


def test_a_journal_that_tells_other_outcomes_than_the_totals_is_seen() -> None:
    rows = {"a": [request("served"), request("failed"), {"kind": "hold", "run": "run-1"}]}
    assert not list(rows_unlike_totals(rows, totals(served=1, failed=1), ["run-1"]))
    assert list(rows_unlike_totals(rows, totals(served=2, failed=1), ["run-1"]))


def test_verdicts_are_read_from_journals_by_time_and_only_enforced_ones() -> None:
    rows = {
        "a": [
            {"kind": "hold", "at": 2.0, "iid": "e0", "reason": "three 500", "hold": "inference"},
            {"kind": "role", "at": 2.5},
        ],
        "b": [{"kind": "ejection", "at": 1.0, "iid": "e1", "enforced": False}, request("served")],
    }
    assert events_of(rows) == [Event("a", 2.0, "hold", "e0", "three 500", "inference")]
