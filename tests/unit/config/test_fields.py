"""Every field of the schema table: its default, a right value, wrong types, values outside its rule."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.config.check import check
from narwhal.config.relations import Draft
from narwhal.config.rules import REQUIRED, Anything, Field, Kind, NotBlank, OneOf, Plain, Shaped, Span, shown
from narwhal.config.schema import BY_PATH, FIELDS, OPTIONAL_BLOCKS, SECTIONS, subsections_of
from narwhal.errors import ConfigError
from tests.support.fleets import contracted, fleet_document, put

ALL_FIELDS = pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.path)

WRONG_TYPES: dict[Kind, list[Any]] = {
    Kind.INTEGER: ["512", 1.0, 1.5, True, [], {}],
    Kind.NUMBER: ["1.0", True, False, [], {}],
    Kind.BOOLEAN: [0, 1, "true", [], {}],
    Kind.TEXT: [7, True, 1.5, [], {}, "\ud800"],
}

DEVICE = {"group": "g", "gpu_uuid": "GPU-1", "device_allowance": 0.9, "gpu_memory_utilization": 0.4}
HARDWARE = {"accelerator": "H100", "accelerators_per_engine": 4, "tensor_parallel": 4}


def examined(document: Any) -> Draft:
    return check(document, {}, known_connectors=("nixl", "mooncake"), known_dialects=("vllm",))


def problems_of(document: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        examined(document)
    return list(caught.value.problems)


def document_for(field: Field) -> dict[str, Any]:
    """A sound document in which the field's section is there."""
    if field.section == "engine_contract":
        return contracted()
    document = fleet_document()
    if field.section == "hardware":
        document["hardware"] = dict(HARDWARE)
    if field.section == "engines[].shared_device":
        for engine in document["engines"][:2]:
            engine["shared_device"] = dict(DEVICE)
    return document


def place(field: Field) -> str:
    return field.path.replace("engines[]", "engines[1]")


def outside(field: Field) -> list[Any]:
    """Values of the right kind that the field's rule refuses; empty only for fields without a rule."""
    rule = field.rule
    if isinstance(rule, OneOf):
        return ["something else"] if field.kind is Kind.TEXT else [2]
    if isinstance(rule, NotBlank):
        return ["", "  "]
    if isinstance(rule, Plain):
        return ["", "  ", "0.32\n.0", "0" * 129, "\x1b[2J"]
    if isinstance(rule, Shaped):
        return ["sha256:" + "0" * 63, "latest"]
    if isinstance(rule, Span):
        return outside_span(rule, whole=field.kind is Kind.INTEGER)
    assert isinstance(rule, Anything)
    return []


def outside_span(span: Span, *, whole: bool) -> list[Any]:
    found: list[Any] = [-1, -0.5]
    if span.low is not None:
        found += [span.low, span.low - 1, span.low - 0.25, span.low / 2]
    if span.high is not None:
        found += [span.high, span.high + 1, span.high + 0.25]
    found = [value for value in found if not span.accepts(value)]
    return [int(value) for value in found if float(value).is_integer()] if whole else found


@ALL_FIELDS
def test_a_sound_document_with_the_fields_section_passes(field: Field) -> None:
    assert examined(document_for(field)).spoiled == set()


@ALL_FIELDS
def test_a_wrong_type_is_told_with_path_kind_and_value(field: Field) -> None:
    for value in WRONG_TYPES[field.kind]:
        document = document_for(field)
        put(document, place(field), value)
        mine = [
            problem for problem in problems_of(document) if problem.startswith(f"{place(field)} must be ")
        ]
        assert len(mine) == 1
        assert mine[0].endswith(f", got {shown(value)}")


@ALL_FIELDS
def test_null_is_a_wrong_type_unless_it_means_not_set(field: Field) -> None:
    document = document_for(field)
    put(document, place(field), None)
    if field.section == "engine_contract":
        if field.default is REQUIRED:
            assert f"{place(field)} is required" in problems_of(document)
        else:
            assert examined(document).values[place(field)] == field.default
    else:
        assert any(
            p.startswith(f"{place(field)} must be ") and p.endswith("got null") for p in problems_of(document)
        )


@ALL_FIELDS
def test_a_value_outside_the_rule_is_told_with_the_rule(field: Field) -> None:
    values = outside(field)
    if isinstance(field.rule, Anything):
        assert values == []
        return
    assert values, f"{field.path} has a rule but no wrong value: teach this test its rule"
    for value in values:
        document = document_for(field)
        put(document, place(field), value)
        problems = problems_of(document)
        if field.section == "engine_contract" and value == "":
            assert f"{place(field)} is required" in problems
        else:
            assert f"{place(field)} must be {field.rule.words}, got {shown(value)}" in problems


@ALL_FIELDS
def test_a_missing_field_takes_its_default_or_is_required(field: Field) -> None:
    document = document_for(field)
    holder: Any = document
    for name in place(field).replace("[1]", ".1").split(".")[:-1]:
        holder = holder[int(name)] if name.isdigit() else holder.get(name, {})
    holder.pop(field.name, None)
    if field.default is REQUIRED:
        assert f"{place(field)} is required" in problems_of(document)
    else:
        assert examined(document).values[place(field)] == field.default


@ALL_FIELDS
def test_defaults_satisfy_their_own_rules(field: Field) -> None:
    if field.default is not REQUIRED and field.default is not None:
        assert field.problem(field.default) == ""


def test_every_field_has_a_sentence_of_documentation() -> None:
    for field in FIELDS:
        assert field.doc.endswith(".")
        assert field.doc[0].isupper() or field.doc[0] == "`"
    assert len(BY_PATH) == len(FIELDS)


@pytest.mark.parametrize("section", [s for s in SECTIONS if s], ids=str)
def test_a_null_section_is_an_absent_one(section: str) -> None:
    document = fleet_document()
    path = section.replace("engines[]", "engines[1]")
    if section == "engines[]":
        document["engines"] = None
        assert problems_of(document) == ["engines is required"]
    elif section == "slo":
        document["slo"] = None
        assert problems_of(document) == ["slo.ttft_s is required", "slo.tpot_s is required"]
    else:
        put(document, path, None)
        assert examined(document).values == examined(fleet_document()).values


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section or "top")
def test_a_section_that_is_no_object_is_told(section: str) -> None:
    document: Any = fleet_document()
    path = section.replace("engines[]", "engines[1]")
    if section:
        put(document, path, 5)
    else:
        document = 5
    assert f"{path or 'the document'} must be an object, got 5" in problems_of(document)


def test_optional_blocks_need_their_fields_only_when_they_are_there() -> None:
    for block in OPTIONAL_BLOCKS:
        assert block in SECTIONS
    document = fleet_document(hardware={})
    assert problems_of(document) == [
        "hardware.accelerator is required",
        "hardware.accelerators_per_engine is required",
        "hardware.tensor_parallel is required",
    ]


def test_an_unknown_key_is_told_with_the_near_one() -> None:
    document = fleet_document(serving={"max_conections": 5, "zzz": 1}, servng={})
    assert problems_of(document) == [
        "servng is not a known field; did you mean serving?",
        "serving.max_conections is not a known field; did you mean max_connections?",
        "serving.zzz is not a known field",
    ]


def test_a_key_of_another_section_is_told_with_its_place() -> None:
    document = fleet_document(serving={"connect_timeout_s": 5})
    assert problems_of(document) == [
        "serving.connect_timeout_s is not a known field; did you mean engine.connect_timeout_s?"
    ]


def test_an_unknown_key_of_an_engine_names_the_engine() -> None:
    document = fleet_document()
    document["engines"][2]["rolle"] = "decode"
    assert problems_of(document) == ["engines[2].rolle is not a known field; did you mean role?"]


def test_the_example_of_the_manual_reads_exactly_so() -> None:
    document = fleet_document(serving__max_connections="512")
    assert problems_of(document) == ['serving.max_connections must be an integer, got "512"']


def test_half_a_character_is_told_as_what_it_is():
    document = fleet_document(model="\ud800")
    assert problems_of(document) == ['model must be a string without half a surrogate pair, got "\\ud800"']


def test_a_whole_number_is_a_fine_number() -> None:
    draft = examined(fleet_document(serving__request_timeout_s=60))
    assert draft.values["serving.request_timeout_s"] == 60.0
    assert isinstance(draft.values["serving.request_timeout_s"], float)


def test_a_number_beyond_all_floats_is_no_finite_number() -> None:
    problems = problems_of(fleet_document(slo__ttft_s=10**400))
    assert problems == ["slo.ttft_s must be a finite number, got a number of over 80 digits"]


def test_connector_and_dialect_must_be_registered() -> None:
    document = fleet_document(engine={"connector": "lmcache", "dialect": "sglang"})
    assert problems_of(document) == [
        'engine.connector must be one of mooncake, nixl, got "lmcache"',
        'engine.dialect must be one of vllm, got "sglang"',
    ]
    assert examined(fleet_document(engine__connector="mooncake")).values["engine.connector"] == "mooncake"


def test_subsections_come_in_the_order_of_the_table() -> None:
    assert subsections_of("") == (
        "engines[]", "slo", "controller", "serving", "engine", "recovery", "profiles", "engine_contract",
        "hardware",
    )  # fmt: skip
    assert subsections_of("controller") == ("thresholds", "reactive")
