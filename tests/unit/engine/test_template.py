"""engine/template.py: what it proves plain is plain, and everything else is left to the search."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from narwhal.engine.events import decode_event
from narwhal.engine.template import BLANK, KNOWN_TEXTS, Template, chunk_head, is_one_string
from narwhal.engine.verbatim import Verbatim
from narwhal.ports import EventKind


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "token_ids": None}
    document = {"id": "cmpl-1", "choices": [choice], "usage": None}
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Proof(Verbatim):
    """Knows one template; what that does not prove is left."""

    def __init__(self, template: Template) -> None:
        self.proved: list[bytes] = []
        super().__init__(asyncio.Protocol(), self.proved.append)
        self._learn(template)

    def _take_unlike(self, data: bytes) -> None:
        pass


def proves(template: Template, data: bytes) -> bool:
    proof = Proof(template)
    proof.data_received(data)
    return proof.proved == [data]


def learned() -> Template:
    template = Template.of(event(" the"))
    assert template is not None
    return template


def test_another_text_in_the_same_event_is_proved() -> None:
    template = learned()
    for text in (" a", "", " router", "é中", "x" * 3000):
        assert proves(template, chunk(event(text))), text


def test_text_that_needs_escapes_is_left_to_the_search() -> None:
    template = learned()
    for text in ('"', "a\\", 'x"y', "\\"):
        assert not proves(template, chunk(event(text))), text


def test_nothing_is_proved_before_something_was_learned() -> None:
    assert not proves(BLANK, chunk(event("a")))


def test_an_event_without_a_text_teaches_nothing() -> None:
    assert Template.of(b'data: {"choices":[{"delta":{},"finish_reason":null}]}\n\n') is None


def test_special_events_and_other_framing_are_not_proved() -> None:
    template = learned()
    good = event(" the")
    wrong = [
        chunk(event("a", "stop")),
        chunk(event("a", "abort")),
        chunk(b"data: [DONE]\n\n"),
        chunk(good + good),
        chunk(good)[:-1],
        chunk(good) + b"\r\n",
        b"%X;ext=1\r\n%b\r\n" % (len(good), good),
        b"%x\r\n%b\r\n" % (len(good) + 1, good),
        b"0%x\r\n%b\r\n" % (len(good), good),
        chunk(good.replace(b" the", b"a\n\ndata: b")),
        chunk(good.replace(b" the", b"a\rb")),
        chunk(good) * 2,
    ]
    assert [one for one in wrong if proves(template, one)] == []


@given(st.text(max_size=40), st.sampled_from([None, "stop", "abort"]))
def test_whatever_is_proved_is_plain_output(text: str, reason: str | None) -> None:
    template = learned()
    data = event(text, reason)
    if proves(template, chunk(data)):
        assert reason is None
        assert decode_event(data).kind is EventKind.OUTPUT


@given(st.binary(max_size=60))
def test_any_bytes_between_the_known_ends_stay_one_string_of_json(middle: bytes) -> None:
    template = learned()
    good = event("@@")
    data = good.replace(b"@@", middle)
    if proves(template, chunk(data)):
        assert data.count(b"\n") == 2
        between = data[good.index(b"@@") : good.index(b"@@") - len(good) + 2]
        assert b'"' not in between
        assert not between.endswith(b"\\")


def test_a_chunk_head_is_told_only_for_exactly_one_chunk() -> None:
    assert chunk_head(b"3\r\nabc\r\n") == 3
    assert chunk_head(b"10\r\n" + b"x" * 16 + b"\r\n") == 4
    for wrong in (
        b"",
        b"3\r\nabc",
        b"4\r\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"03\r\nabc\r\n",
        b"3\r\nabc\n\n",
        b"0\r\n\r\n",
    ):
        assert chunk_head(wrong) == 0, wrong
    assert chunk_head(chunk(b"x" * 5000)) == 0


def test_known_texts_are_bounded_in_number_and_length() -> None:
    for index in range(40_000):
        assert is_one_string(b"%d" % index)
    assert is_one_string(b"x" * 3000)
    assert len(KNOWN_TEXTS) <= 16_384
    assert max(map(len, KNOWN_TEXTS)) <= 48


def test_a_chunk_without_its_size_line_is_not_proved() -> None:
    template = learned()
    for text in ("x" * n for n in range(400)):
        assert not proves(template, event(text) + b"\r\n")
