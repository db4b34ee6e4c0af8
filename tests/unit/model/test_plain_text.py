"""Foreign text: what is kept as it is, how it is shown, and documents that hold what cannot be written."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model.plain_text import MOST_CHARS, escaped_document, is_plain, shown, to_json, writable


@pytest.mark.parametrize(
    ("text", "as_shown"),
    [
        ("0.32.0", "0.32.0"),
        ("\ud800", "\\ud800"),
        ("a\nb\r\0", "a\\nb\\r\\x00"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202eabc", "\\u202eabc"),
        ("x" * 200, "x" * 127 + "…"),
        ("\0" * 128, "\\x00" * 31 + "\\x0…"),
    ],
)
def test_a_foreign_text_is_shown_printable_and_short(text: str, as_shown: str) -> None:
    assert shown(text) == as_shown
    assert is_plain(text) == (text == as_shown)


def test_a_text_of_nothing_or_of_too_much_is_not_kept() -> None:
    assert not is_plain("")
    assert is_plain("x" * MOST_CHARS)
    assert not is_plain("x" * (MOST_CHARS + 1))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters()), JSON, max_size=3))
def test_every_document_can_be_written_and_read(document: dict[str, Any]) -> None:
    assert orjson.loads(to_json(document)) == writable(document)


@pytest.mark.parametrize("odd", ["\ud800", "a\udfffb", 2**64, -(2**63) - 1])
def test_one_bad_word_costs_nothing_but_itself(odd: Any) -> None:
    told = orjson.loads(to_json({"good": ["ü", 2**64 - 1], "bad": odd, "deep": [{"x": (odd,)}]}))
    assert told["good"] == ["ü", 2**64 - 1]
    assert told["bad"] == told["deep"][0]["x"][0] == writable(odd)


def test_what_is_no_json_is_a_bug_of_ours() -> None:
    with pytest.raises(TypeError):
        to_json({"x": object()})


def test_every_text_of_a_document_is_escaped_for_a_terminal() -> None:
    odd = {"error": "a\x1b[31m\n", "\x9b": ["\ud800", {"n": 8, "ok": True, "none": None, "f": 1.5}]}
    told = {"error": "a\\x1b[31m\\n", "\\x9b": ["\\ud800", {"n": 8, "ok": True, "none": None, "f": 1.5}]}
    assert escaped_document(odd) == told
