"""Whatever JSON stands wherever in a fleet file: values or sentences come out, never another error."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from narwhal.config.check import check
from narwhal.config.json_text import parse
from narwhal.config.relations import ORDERS
from narwhal.config.schema import FIELDS, SECTIONS
from narwhal.errors import ConfigError
from tests.support.fleets import contracted, put

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from([0, 1, 0.5, 10**400, -1, "", "${A}", "http://h:1", "whole_wave", "predictive"])
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
PLACES = [field.path.replace("engines[]", "engines[1]") for field in FIELDS]
PLACES += [section.replace("engines[]", "engines[1]") for section in SECTIONS if section] + ["engines"]


def outcome(document: Any) -> tuple[str, ...]:
    """The problems; empty when the document was accepted. Every order holds in what is accepted."""
    try:
        draft = check(document, {}, known_connectors=("nixl",), known_dialects=("vllm",))
    except ConfigError as error:
        assert error.problems
        return error.problems
    for order in ORDERS:
        assert order.holds(draft)
    return ()


@given(ANY_JSON)
def test_any_value_as_the_document(document: Any) -> None:
    assert outcome(document)


def _depth(place: str) -> int:
    """What lies inside another place is put before that one is replaced."""
    return place.count(".") + place.count("[")


@given(st.dictionaries(st.sampled_from(PLACES), ANY_JSON, min_size=1, max_size=4))
def test_any_values_at_any_places(changes: dict[str, Any]) -> None:
    document = contracted()
    for place, value in sorted(changes.items(), key=lambda item: _depth(item[0]), reverse=True):
        put(document, place, value)
    for problem in outcome(document):
        assert "\n" not in problem
        problem.encode()


@given(st.binary(max_size=200))
def test_any_bytes_as_the_text(data: bytes) -> None:
    try:
        parse(data)
    except ConfigError as error:
        assert len(error.problems) == 1
