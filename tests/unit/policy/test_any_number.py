"""A saved document with any number in any place ends no router, and what goes on from it can be written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict
from math import inf, nan
from typing import Any

import pytest

from narwhal.errors import SavedStateError
from narwhal.model.handoff import HandoffDocument
from narwhal.policy.handoff_codec import at_age, decode, encode, to_fields
from narwhal.policy.travel import Opening
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import NOW, fleet_of

ODD = (10**400, -(10**400), 2**64, 2**53 + 1, 1e308, inf, -inf, nan, -1, 0, 0.5, True, "5", None, [1], {})
CONTRACT = {"vllm_version": "0.32.0"}
RECORD = {
    "engine": "d1",
    "state": "draining",
    "deadline_at": 1_800_000_600.0,
    "old_process_start": 1_799_000_000.0,
    "new_process_start": 1_799_000_600.0,
}
DOCUMENT = to_fields(handoff_document(p0="prefill", p1="prefill", d0="decode", d1="decode")) | {
    "holds": {"p0": {"remaining_s": 5.0, "reason": "slow"}},
    "streaks": {"d0": {"timeout": 2}},
    "edges": [{"producer": "p0", "consumer": "d0", "age_s": 3.0, "reason": "broken"}],
    "kv_ledger": {"p0": [{"handoffs": 2, "tokens": 700, "work": 1.5, "remaining_s": 20.0}]},
    "demand_risk": {"kind": "first_token_timeout", "age_s": 7.0, "events": {"first_token_timeout": 3}},
    "lifecycle": {
        "wave": None,
        "process_starts": {"p0": 1_799_000_000.0, "p1": 1_799_000_001.0},
        "records": [RECORD],
    },
}


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where one stands."""
    if isinstance(value, int | float):
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield from numbers(part, (*path, name))


def with_number(path: tuple[Any, ...], number: Any) -> dict[str, Any]:
    changed = deepcopy(DOCUMENT)
    place = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = number
    return changed


@pytest.mark.parametrize("path", list(numbers(DOCUMENT)), ids=lambda path: ".".join(map(str, path)))
def test_a_router_goes_on_from_a_document_with_any_number_or_names_the_field(path: tuple[Any, ...]) -> None:
    for odd in ODD:
        try:
            document = decode(with_number(path, odd))
        except SavedStateError as error:
            assert str(path[0]) in str(error), odd
            continue
        carried_on(at_age(document, 1.5))


def carried_on(document: HandoffDocument) -> None:
    """Taken, worked with for some passes, and handed on as JSON, with nothing of it turned into text."""
    fleet = fleet_of(contract=CONTRACT)
    fleet.restore(document, NOW, opening=Opening())
    for second in range(3):
        fleet.tick(NOW + second)
        fleet.upkeep.drains.expire(1_800_000_000.0)
        fleet.check_invariants()
    state = asdict(fleet.export(NOW + 3.0))
    told = {name: state[name] for name in state if name != "roles"}
    text = json.dumps(DOCUMENT | told, allow_nan=False)
    written = json.loads(encode(decode(text.encode())))
    assert {name: written[name] for name in told} == {name: json.loads(text)[name] for name in told}
