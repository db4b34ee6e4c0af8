"""engine/sse.py: events come out whole and unchanged, wherever reads cut them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.engine.sse import SseSplitter, event_data, is_event_stream
from narwhal.errors import StreamBroken

LIMIT = 4 << 20

EVENTS = {
    "lf": [
        b'data: {"a":"x"}\n\n',
        b": ping\n\n",
        "data: é\u4e2d\U0001f600\n\n".encode(),
        b"data: [DONE]\n\n",
    ],
    "crlf": [
        b'data: {"a":1}\r\n\r\n',
        b": ping\r\n\r\n",
        b"data: a\r\ndata: b\r\n\r\n",
        b"data: [DONE]\r\n\r\n",
    ],
    "cr": [b"data: a\r\r", b"data: b\rdata: c\r\r", b"data: [DONE]\r\r"],
    "mixed": [b"data: a\r\n\n", b"data: b\n\r\n", b"id: 7\ndata: c\n\n", b"data: d\r\r", b"data: [DONE]\n\n"],
}


def split(*reads: bytes) -> list[bytes]:
    splitter = SseSplitter(LIMIT)
    return [event for read in reads for event in splitter.feed(read)] + splitter.flush()


@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS.keys())
def test_a_cut_at_any_byte_changes_nothing(events: list[bytes]) -> None:
    stream = b"".join(events)
    for at in range(len(stream) + 1):
        assert split(stream[:at], stream[at:]) == events, at


@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS.keys())
def test_one_byte_a_read_changes_nothing(events: list[bytes]) -> None:
    stream = b"".join(events)
    assert split(*(stream[at : at + 1] for at in range(len(stream)))) == events


@given(st.data())
def test_any_stream_comes_out_whole_however_it_is_cut(data: st.DataObject) -> None:
    pieces = st.sampled_from(
        [b"data: ", b"x", b"\n", b"\r\n", b"\r", b": c", "é".encode(), b"\n\n", b"\r\n\r\n"]
    )
    stream = b"".join(data.draw(st.lists(pieces, max_size=40)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = [0, *cuts, len(stream)]
    splitter = SseSplitter(LIMIT)
    out = [e for a, b in pairwise(bounds) for e in splitter.feed(stream[a:b])]
    held = splitter.held
    out += splitter.flush()
    joined = b"".join(out)
    assert stream.startswith(joined)
    assert len(stream) - len(joined) in (0, held)


def test_a_last_event_is_not_kept_waiting_when_the_stream_uses_lone_crs() -> None:
    assert SseSplitter(LIMIT).feed(b"data: a\r\r") == [b"data: a\r\r"]


def test_a_crlf_that_is_cut_in_the_middle_of_a_blank_line_stays_with_its_event() -> None:
    splitter = SseSplitter(LIMIT)
    assert splitter.feed(b"data: a\r\n\r") == []
    assert splitter.feed(b"\ndata: b\r\n\r\n") == [b"data: a\r\n\r\n", b"data: b\r\n\r\n"]


def test_an_incomplete_event_at_the_end_is_no_event() -> None:
    splitter = SseSplitter(LIMIT)
    assert splitter.feed(b"data: a\n\ndata: b\n") == [b"data: a\n\n"]
    assert splitter.flush() == []


@pytest.mark.parametrize("step", [65_536, 262_144, 1_000_003])
def test_an_event_of_two_mebibytes_comes_out_in_one_piece(step: int) -> None:
    event = b"data: " + b"x" * (2 << 20) + b"\n\n"
    stream = event + b"data: [DONE]\n\n"
    reads = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert split(*reads) == [event, b"data: [DONE]\n\n"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_event_over_the_limit_breaks_the_stream(end: bytes) -> None:
    splitter = SseSplitter(100)
    with pytest.raises(StreamBroken) as caught:
        for _ in range(30):
            splitter.feed(b"data: xx" + end)
    assert caught.value.kind == "too_large"


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b'data: {"a":1}\n\n', b'{"a":1}'),
        (b"data:no space\r\n\r\n", b"no space"),
        (b"data:  two spaces\n\n", b" two spaces"),
        (b"event: x\ndata: a\nid: 4\ndata: b\n\n", b"a\nb"),
        (b"data\ndata: a\n\n", b"\na"),
        (b": ping\n\n", b""),
        (b"\n\n", b""),
        (b"database: 1\n\n", b""),
        (b"data: a\rdata: b\r\r", b"a\nb"),
    ],
)
def test_data_lines_are_joined_as_the_standard_says(event: bytes, data: bytes) -> None:
    assert event_data(event) == data


@pytest.mark.parametrize(
    ("value", "is_stream"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=UTF-8", True),
        ("application/json", False),
        (None, False),
    ],
)
def test_a_media_type_is_read_in_any_case(value: str | None, is_stream: bool) -> None:
    assert is_event_stream({} if value is None else {"content-type": value}) is is_stream
