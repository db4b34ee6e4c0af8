"""What a handoff tells of engines that the fleet file of the next owner does not have (cluster.md, I5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from narwhal.model.engine import EngineSpec
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument
from narwhal.model.maintenance import Captured, DrainState, WorkLeft
from narwhal.model.standing import HoldKind
from narwhal.policy.absent import MOST, MOST_BYTES, MOST_CHARS
from narwhal.policy.fleet import Fleet
from narwhal.policy.handoff_codec import decode, encode
from tests.support.settings import fleet_config, handoff_document

NOW = 1000.0
DEADLINE = 1_900_000_000.0
PEERS = ("e0", "e1", "e2", "e4", "e5")
ALL = (*PEERS, "e3")
START = 1_800_000_000.0


def fleet_of(*engines: str) -> Fleet:
    return Fleet(fleet_config(*(EngineSpec(iid, f"http://{iid}") for iid in engines)), {})


def told(fleet: Fleet, now: float = NOW) -> HandoffDocument:
    """Its handoff document, as the next owner reads it."""
    document = replace(handoff_document(), engines=fleet.engines)
    state = fleet.export(now)
    names = (name for name in FleetState.__dataclass_fields__ if name != "roles")
    return decode(encode(replace(document, **{name: getattr(state, name) for name in names})))


def passed_on(document: HandoffDocument, now: float = NOW, *engines: str) -> tuple[Fleet, HandoffDocument]:
    """An owner of the other engines that has it and tells it on at once."""
    between = fleet_of(*(engines or PEERS))
    between.restore(document, now)
    between.check_invariants()
    return between, told(between, now)


def drained() -> Fleet:
    """e3 is drained and may be stopped."""
    fleet = fleet_of(*ALL)
    fleet.upkeep.drain("e3", deadline_at=DEADLINE)
    fleet.upkeep.captured("e3", Captured(START, "0.32.0"))
    fleet.upkeep.settle("e3", WorkLeft(0, 0, 0, 0, 0))
    return fleet


def test_a_drain_outlives_owners_that_do_not_know_the_engine() -> None:
    before = drained()
    document = told(before)
    for _ in range(3):
        between, document = passed_on(document)
        assert "e3" not in between.engines and between.upkeep.rows().keys() == set(PEERS)
        assert between.available(NOW) == tuple(sorted(PEERS))
    assert document.lifecycle["records"] == told(before).lifecycle["records"]
    after = fleet_of(*ALL)
    after.restore(document, NOW)
    record = after.upkeep.drains.record("e3")
    assert (record.state, record.captured) == (DrainState.DRAINED, Captured(START, "0.32.0"))
    assert after.available(NOW) == tuple(sorted(PEERS))


def test_a_member_that_was_left_out_of_its_wave_comes_back_drained() -> None:
    fleet = fleet_of(*ALL)
    fleet.upkeep.drain_wave("wave-1", deadline_at=DEADLINE)
    between, _ = passed_on(told(fleet))
    between.upkeep.wave.begin()
    between.upkeep.wave.complete()
    between.upkeep.drains.restore([])
    after = fleet_of(*ALL)
    after.restore(told(between), NOW)
    after.check_invariants()
    assert after.upkeep.drains.out() == {"e3"}
    assert after.upkeep.drains.record("e3").wave_id is None


def test_an_ejection_outlives_them_with_its_reason() -> None:
    fleet = fleet_of(*ALL)
    fleet.standings.eject("e3", "3 connection failures in a row", now=NOW)
    between, document = passed_on(told(fleet))
    assert between.standings.ejected() == ()
    after = fleet_of(*ALL)
    after.restore(document, NOW)
    assert after.standings.ejected() == ("e3",)
    assert after.standings.ejections.view()["e3"].reason == "3 connection failures in a row"


def test_an_inference_hold_outlives_them() -> None:
    fleet = fleet_of(*ALL)
    fleet.standings.hold("e3", "3 stream failures", now=NOW)
    _, document = passed_on(told(fleet))
    after = fleet_of(*ALL)
    after.restore(document, NOW)
    assert {iid: one.reason for iid, one in after.standings.holds(NOW).items()} == {"e3": "3 stream failures"}


def test_a_quarantine_outlives_them_while_its_time_runs() -> None:
    fleet = fleet_of(*ALL)
    fleet.standings.quarantine("e3", NOW + 30.0, reason="a decode leg failed", now=NOW)
    between, _ = passed_on(told(fleet))
    after = fleet_of(*ALL)
    after.restore(told(between, NOW + 10.0), NOW)
    hold = after.standings.holds(NOW)["e3"]
    assert (hold.kind, hold.reason, hold.remaining_s) == (HoldKind.QUARANTINE, "a decode leg failed", 20.0)
    assert told(between, NOW + 30.0).holds == {}


def test_only_a_readmission_ends_it() -> None:
    """The owner that has the engine owns its record: what it ended is not told again by anybody."""
    _, document = passed_on(told(drained()))
    after = fleet_of(*ALL)
    after.restore(document, NOW)
    after.upkeep.drains.restore([])
    _, document = passed_on(told(after))
    assert document.lifecycle["records"] == []


def test_the_log_says_who_is_carried() -> None:
    notes = fleet_of(*PEERS).restore(told(drained()), NOW)
    assert "e3 is not in this fleet file: its drain is carried for an owner that has it" in notes


def row(iid: str, **fields: Any) -> dict[str, Any]:
    return {"engine": iid, "state": "drained", "old_process_start": START, **fields}


def records(*rows: Any, **fields: Any) -> HandoffDocument:
    lifecycle = {"wave": None, "records": list(rows)}
    return replace(handoff_document(), engines=PEERS, lifecycle=lifecycle, **fields)


def test_a_document_carries_so_many_engines_at_most_and_the_drained_ones_first() -> None:
    others = tuple(f"a{n:03}" for n in range(2 * MOST))
    fleet = fleet_of(*PEERS)
    notes = fleet.restore(records(row("zz"), ejected=others), NOW)
    document = told(fleet)
    assert [one["engine"] for one in document.lifecycle["records"]] == ["zz"]
    assert document.ejected == others[: MOST - 1]
    assert notes[-1].endswith(f"{2 * MOST + 1} engines that are not in this fleet file: {MOST} are carried")


@pytest.mark.parametrize(
    "odd",
    [
        row("e3", error="x" * MOST_BYTES),
        row("e3", checks=[{"name": "health", "outcome": "failed", "detail": "y" * MOST_BYTES}]),
        row("e3", from_tomorrow={"deep": ["z" * MOST_BYTES]}),
    ],
)
def test_a_record_that_nobody_wrote_so_long_is_carried_short(odd: dict[str, Any]) -> None:
    _, document = passed_on(records(odd))
    (kept,) = document.lifecycle["records"]
    assert (kept["engine"], kept["state"], kept["old_process_start"]) == ("e3", "blocked", START)
    assert len(encode(document)) < MOST_BYTES


def test_a_record_of_a_later_version_is_carried_as_it_came() -> None:
    later = row("e3", from_tomorrow={"deep": [1, None]}, state="resting")
    _, document = passed_on(records(later))
    assert document.lifecycle["records"] == [later]


def test_what_is_no_engine_of_anybody_is_not_carried() -> None:
    odd = (5, None, {}, {"engine": 7}, row(""), row("e" * (MOST_CHARS + 1)), row("e9", state="active"))
    _, document = passed_on(records(*odd, ejected=("", "e" * (MOST_CHARS + 1))))
    assert (document.lifecycle["records"], document.ejected) == ([], ())


def test_reasons_are_carried_printable_and_cut() -> None:
    words = {"reason": "\x1b[2J" + "r" * 10_000, "step": 5}
    fields = {
        "ejected": ("e3",),
        "ejections": {"e3": words},
        "inference_sources": {"e6": ("e" * 10_000, "")},
        "inference_holds": {"e6": "odd"},
        "holds": {"e7": {"kind": "quarantine", "reason": "\n" * 10_000, "remaining_s": 5.0}},
    }
    _, document = passed_on(records(**fields))
    assert len(encode(document)) < 4 * MOST_CHARS + 1000
    assert document.ejections["e3"]["reason"].startswith("\\x1b[2J")
    assert document.ejections["e3"]["step"] == "5"
    assert document.inference_holds == {"e6": {"reason": "", "consumer": ""}}
