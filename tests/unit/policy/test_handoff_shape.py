"""Every field of the saved documents with every wrong type: named at a resume, read safely without one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from narwhal.cluster.local import LocalPublisher
from narwhal.cluster.state import Identity, OwnState
from narwhal.errors import SavedStateError
from narwhal.model.engine import EngineSpec
from narwhal.policy.fleet import Fleet
from narwhal.policy.handoff_codec import decode, salvage
from narwhal.policy.handoff_shape import safe, wrong
from narwhal.policy.totals import Totals
from narwhal.policy.travel import Opening
from narwhal.store.checkpoint import FileCheckpoint
from tests.support.settings import fleet_config
from tests.support.ticking import TickingClock
from tests.unit.cluster.cluster_rig import at_once

ENGINES = ("e0", "e1", "e2", "e3")
RECORD = {
    "engine": "e3", "state": "drained", "deadline_at": 1.9e9, "wave_id": None, "old_process_start": 1.8e9,
    "new_process_start": None, "vllm_version": "0.32.0", "attestation_digest": "",
    "checks": [{"name": "health", "outcome": "passed", "detail": "200"}], "error": "", "ready_to_stop": True,
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "schema": "narwhal.handoff", "schema_version": 1, "at": 1.8e9, "run": "run-1", "model": "tiny",
    "epoch": 7, "holder": "r0:abc", "engines": list(ENGINES),
    "roles": {"e0": "prefill", "e1": "prefill", "e2": "decode", "e3": "decode"},
    "ejected": ["e1"], "ejections": {"e1": {"reason": "why", "step": "", "detail": ""}},
    "inference_sources": {"e2": ["e0"]}, "inference_holds": {"e2": {"reason": "why", "consumer": ""}},
    "counters": {"served": 3, "offered": 3},
    "lifecycle": {
        "wave": None, "records": [RECORD], "engine_restart_policy": "individual",
        "process_starts": {"e0": 1.8e9}, "backend_outage": False,
        "awaiting_identity": ["e0"], "uncompared_starts": ["e0"],
    },
    "demand_risk": {"kind": "surge", "age_s": 4.0, "events": {"surge": 1}},
    "holds": {"e2": {"kind": "quarantine", "reason": "why", "remaining_s": 9.0}},
    "streaks": {"e0": {"timeout": 1}},
    "edges": [{"producer": "e0", "consumer": "e2", "reason": "why", "age_s": 2.0}],
    "kv_ledger": {"e0": [{"handoffs": 1, "tokens": 7, "work": 0.1, "remaining_s": 20.0}]},
}  # fmt: skip
WAVE = {"id": "wave-1", "state": "draining", "why": "", "ready_to_stop": False}
OWN: dict[str, Any] = {
    "seq": 4, "applied_n": 9, "epoch_floor": 7, "ttl_ms_max": 5000, "boot_id": "boot", "boottime_s": 1.0,
    "totals": {"run-1": {"served": 3, "offered": 3}},
}  # fmt: skip
NULLABLE = {
    "demand_risk", "lifecycle.wave", "lifecycle.wave.id", "lifecycle.records[0].deadline_at",
    "lifecycle.records[0].wave_id", "lifecycle.records[0].old_process_start",
    "lifecycle.records[0].new_process_start",
}  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, 5, "x", [], {}, [5], {"e3": 5})

Place = tuple[str | int, ...]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every value in it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield (*at, name)
        yield from places(inner, (*at, name))


def named(place: Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]


def kind(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def read(document: Any, place: Place) -> Any:
    for part in place:
        document = document[part]
    return document


def put(document: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    read(changed, place[:-1])[place[-1]] = value
    return changed


def may_be(place: Place, before: Any, value: Any) -> bool:
    if named(place) in NULLABLE:
        wanted = (
            str
            if named(place).endswith("id")
            else dict
            if before is None or named(place) == "demand_risk"
            else float
        )
        wanted = float if named(place).endswith(("_at", "_start")) else wanted
        return value is None or kind(value) is wanted
    return kind(value) is kind(before)


def wrong_types() -> list[Any]:
    """One case a field: its name, and documents that have it in every wrong type."""
    whole = put(DOCUMENT, ("lifecycle", "wave"), WAVE)
    bases = [(DOCUMENT, place) for place in places(DOCUMENT)]
    bases += [(whole, place) for place in places(whole) if place[:2] == ("lifecycle", "wave")]
    cases = []
    for base, place in bases:
        others = [one for one in OTHERS if not may_be(place, read(base, place), one)]
        cases.append(pytest.param([put(base, place, one) for one in others], named(place), id=named(place)))
    return cases


WRONG = wrong_types()
_LESS = {name: value for name, value in DOCUMENT.items() if name != "lifecycle"}
MISSING = [
    pytest.param([_LESS], "lifecycle", id="no lifecycle"),
    pytest.param(
        [put(DOCUMENT, ("lifecycle", "records"), ["e3"])], "lifecycle.records[0]", id="a list of IDs"
    ),
]


def fleet_of(*engines: str) -> Fleet:
    return Fleet(fleet_config(*(EngineSpec(iid, f"http://{iid}") for iid in engines)), {})


def test_the_document_itself_is_good() -> None:
    assert wrong(DOCUMENT) == wrong(put(DOCUMENT, ("lifecycle", "wave"), WAVE)) == ""
    assert sum(len(case.values[0]) for case in WRONG) > 400


@pytest.mark.parametrize(("documents", "name"), [*WRONG, *MISSING])
def test_a_wrong_type_is_named_and_read_safely_it_places_nobody_on_a_drained_engine(
    documents: list[dict[str, Any]], name: str
) -> None:
    """Whatever is wrong, e3 stays out: by its record, or with the whole fleet."""
    for document in documents:
        with pytest.raises(SavedStateError) as caught:
            decode(document, source="state.json")
        assert str(caught.value).startswith(f"state.json: {name}"), str(caught.value)
        left = salvage(document)
        if left is None:
            assert name in ("schema", "schema_version")
            continue
        fleet = fleet_of(*ENGINES)
        fleet.restore(left, 1000.0)
        fleet.check_invariants()
        assert "e3" not in fleet.available(1000.0)
        if not name.startswith("lifecycle"):
            assert fleet.upkeep.drains.out() == {"e3"} and not fleet.upkeep.wave.reason
        told = wrong(safe(document))
        assert not told or told.startswith("lifecycle.records[0]."), told


@pytest.mark.parametrize("name", ["records", "wave"])
def test_what_cannot_be_told_of_drains_holds_the_fleet(name: str) -> None:
    left = salvage(put(DOCUMENT, ("lifecycle", name), 5))
    assert left is not None
    fleet = fleet_of(*ENGINES)
    fleet.restore(left, 1000.0)
    said = "whole-wave restart required: the drains of another owner could not be read"
    assert (fleet.available(1000.0), fleet.upkeep.wave.reason) == ((), said)


@pytest.mark.parametrize("part", ["wave", "records"])
def test_a_lifecycle_without_wave_or_records_tells_of_none(part: str) -> None:
    told = {name: value for name, value in DOCUMENT["lifecycle"].items() if name != part}
    assert wrong({**_LESS, "lifecycle": told}) == ""
    assert wrong({**_LESS, "lifecycle": {}}) == ""
    fleet = fleet_of(*ENGINES)
    left = salvage({**_LESS, "lifecycle": {}})
    assert left is not None
    fleet.restore(left, 0.0, opening=Opening())
    assert (fleet.upkeep.drains.out(), fleet.upkeep.wave.reason) == (set(), "")


@pytest.mark.parametrize("ejected", [None, "e1", {"e1": 1}, ["e1", 5]])
def test_who_is_ejected_is_told_by_the_reasons_too(ejected: Any) -> None:
    left = salvage({**DOCUMENT, "ejected": ejected})
    assert left is not None and left.ejected == ("e1",)


@contextmanager
def alone(path: Path) -> Iterator[tuple[LocalPublisher, Fleet]]:
    fleet, clock, file = fleet_of(*ENGINES), TickingClock(), FileCheckpoint(path)
    state = OwnState(fleet, Totals("run-2"), identity=Identity("r0", "run-2", "tiny", ENGINES), clock=clock)
    yield LocalPublisher(file, state, clock=clock, blocking=at_once), fleet
    file.close()


BAD_FILES = [
    *((name, [value for value in OTHERS if kind(value) is not kind(told)]) for name, told in OWN.items()),
    ("totals", [{"run-1": value} for value in OTHERS if not isinstance(value, dict)]),
    ("totals", [{"run-1": {"served": value}} for value in OTHERS if kind(value) is not float]),
    ("lifecycle", [None, []]),
    ("engines", ["e3"]),
]


@pytest.mark.parametrize(("name", "values"), BAD_FILES)
def test_a_file_with_a_wrong_type_ends_a_resume_and_is_read_safely_without(
    tmp_path: Path, name: str, values: list[Any]
) -> None:
    path = tmp_path / "state.json"
    for value in values:
        path.write_text(json.dumps({**DOCUMENT, **OWN, name: value}))
        with alone(path) as (publisher, _), pytest.raises(SavedStateError) as caught:
            publisher.open(resume=True)
        assert f"{path}: {name}" in str(caught.value)
        with alone(path) as (publisher, fleet):
            notes = publisher.open(resume=False)
        assert notes[0].startswith(f"the saved state is damaged, and taken with care: {path}: {name}")
        assert fleet.available(0.0) == () and fleet.standings.unverified() == ENGINES
        assert fleet.upkeep.drains.out() == {"e3"} or fleet.upkeep.wave.reason
