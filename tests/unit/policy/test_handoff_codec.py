"""The handoff document on the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from narwhal.errors import SavedStateError
from narwhal.model.handoff import HandoffDocument
from narwhal.model.lease import MAX_EPOCH
from narwhal.model.request import Counters
from narwhal.policy.handoff_codec import apply, decode, diff, encode, to_fields

DOCUMENT = HandoffDocument(
    at=1.5,
    run="run-1",
    model="m",
    epoch=7,
    holder="r0:abc",
    engines=("e0", "e1"),
    roles={"e0": "prefill", "e1": "decode"},
    ejected=("e1",),
    ejections={"e1": {"reason": "3 connection failures", "step": "", "detail": ""}},
    inference_sources={"e1": ("", "e0")},
    inference_holds={"e1": {"reason": "3 stream failures", "consumer": ""}},
    counters=Counters(served=3, offered=3),
    lifecycle={"wave": None, "records": []},
    demand_risk={"kind": "k", "age_s": 1.0, "events": {"k": 2}},
    holds={"e0": {"remaining_s": 2.0}},
    streaks={"e0": {"timeout": 1}},
    edges=[{"producer": "e0", "consumer": "e1", "reason": "r", "age_s": 1.0}],
    kv_ledger={"e0": []},
    extra={"from_tomorrow": {"deep": [1, None, "ü"]}},
)


def test_a_document_survives_the_wire_with_fields_of_a_later_version() -> None:
    assert decode(encode(DOCUMENT)) == DOCUMENT


def test_resting_fields_may_be_absent() -> None:
    wanted = {"schema", "schema_version", "at", "run", "model", "epoch", "holder", "engines", "lifecycle"}
    bare = {name: value for name, value in to_fields(DOCUMENT).items() if name in wanted}
    document = decode(bare)
    assert (document.ejected, document.demand_risk, document.counters) == ((), None, Counters())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", "narwhal.fleet"),
        ("schema_version", 2),
        ("schema_version", None),
        ("at", "now"),
        ("at", True),
        ("run", 5),
        ("epoch", -1),
        ("epoch", 1.5),
        ("epoch", MAX_EPOCH + 1),
        ("engines", None),
        ("engines", [1]),
        ("roles", ["e0"]),
        ("roles", {"e0": "both"}),
        ("ejected", "e0"),
        ("inference_sources", {"e0": "e1"}),
        ("inference_holds", []),
        ("counters", {"served": -1}),
        ("counters", []),
        ("lifecycle", 3),
        ("demand_risk", []),
        ("holds", None),
        ("streaks", []),
    ],
)
def test_a_wrong_field_is_named_with_its_source(field: str, value: Any) -> None:
    with pytest.raises(SavedStateError, match=rf"state\.json: {field}"):
        decode({**to_fields(DOCUMENT), field: value}, source="state.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"12"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(SavedStateError, match=r"state\.json: not"):
        decode(data, source="state.json")


def test_a_delta_carries_whole_new_values_of_changed_fields_only() -> None:
    later = apply(DOCUMENT, {"roles": {"e0": "decode", "e1": "decode"}, "new_thing": 1})
    assert diff(DOCUMENT, later) == {"roles": {"e0": "decode", "e1": "decode"}, "new_thing": 1}
    assert diff(DOCUMENT, DOCUMENT) == {}


def test_applying_a_delta_twice_is_applying_it_once() -> None:
    delta = {"streaks": {}, "epoch": 9}
    once = apply(DOCUMENT, delta)
    assert apply(once, delta) == once
    assert once.epoch == 9 and once.streaks == {}


def test_a_text_that_is_no_unicode_keeps_no_document_from_being_written_and_read() -> None:
    odd = replace(DOCUMENT, lifecycle={**DOCUMENT.lifecycle, "error": "tells \ud800", "\udfff": 2**70})
    read = decode(encode(odd))
    assert read.lifecycle == {**DOCUMENT.lifecycle, "error": "tells \\ud800", "\\udfff": hex(2**70)}
