"""serving/relay.py: what a streaming client sees, and what it must not see."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.errors import StreamBroken
from narwhal.ports import EventKind, StreamEvent
from narwhal.serving.relay import Relay, RelayPlan
from tests.support.clients import KeptFlow, KeptStream
from tests.support.ticking import TickingClock

LIMIT = 1 << 20
HEADERS = (("content-type", "text/event-stream"), ("x-request-id", "r"))

ROLE = StreamEvent(EventKind.ROLE, b"data: role\n\n", {})
PING = StreamEvent(EventKind.OTHER, b": ping\n\n")
OUT = StreamEvent(EventKind.OUTPUT, b"data: out\n\n", {})
FINISH = StreamEvent(EventKind.FINISH, b"data: fin\n\n", {}, "stop")
USAGE = StreamEvent(
    EventKind.USAGE, b"data: usage\n\n", {}, None, {"prompt_tokens": 7, "completion_tokens": 3}
)
ERROR = StreamEvent(EventKind.ERROR, b"data: error\n\n", {})
DONE = StreamEvent(EventKind.DONE, b"data: [DONE]\n\n")


def bad(reason: str) -> StreamEvent:
    return StreamEvent(EventKind.FINISH, b"data: bad\n\n", {}, reason)


class Rig:
    def __init__(self, *, include_usage: bool = False, takes_chunks: bool = False) -> None:
        self.client = KeptStream(takes_chunks=takes_chunks)
        self.flow = KeptFlow()
        self.clock = TickingClock()
        self.first = 0
        self.written_at_end: list[int] = []
        plan = RelayPlan(HEADERS, include_usage, self.note_first, self.note_end, LIMIT)
        self.relay = Relay(self.client, plan, clock=self.clock)
        self.relay.on_open(self.flow)

    def note_first(self) -> None:
        assert not self.client.started
        self.first += 1

    def note_end(self) -> None:
        self.written_at_end.append(len(self.client.writes))

    def fault(self) -> str:
        assert isinstance(self.flow.error, StreamBroken)
        return self.flow.error.kind


def raws(*events: StreamEvent) -> bytes:
    return b"".join(event.raw for event in events)


# --- before the first output ---


def test_nothing_leaves_before_the_first_output() -> None:
    rig = Rig()
    rig.relay.on_events([PING])
    rig.relay.on_events([ROLE])
    assert not rig.client.started
    rig.relay.on_events([OUT])
    assert (rig.client.status, rig.client.headers) == (200, HEADERS)
    assert rig.client.writes == [raws(PING, ROLE, OUT)]
    assert rig.first == 1


def test_a_failure_before_output_leaves_the_response_open_for_an_error() -> None:
    for event in (ERROR, bad("abort"), DONE):
        rig = Rig()
        rig.relay.on_events([ROLE, event])
        assert rig.flow.error is not None
        assert not rig.client.started


def test_endless_comments_before_the_first_output_are_no_stream() -> None:
    rig = Rig()
    for _ in range(LIMIT // len(PING.raw) + 1):
        rig.relay.on_events([PING])
    assert rig.fault() == "too_large"


def test_a_role_event_with_the_token_ids_of_a_long_prompt_waits_too() -> None:
    rig = Rig()
    role = StreamEvent(EventKind.ROLE, b"data: %b\n\n" % (b"1" * (LIMIT - 100)), {})
    rig.relay.on_events([role])
    rig.relay.on_events([OUT])
    assert rig.flow.error is None
    assert rig.client.writes == [raws(role, OUT)]


# --- a good stream ---


def test_one_read_is_one_write() -> None:
    rig = Rig(include_usage=True)
    rig.relay.on_events([OUT])
    rig.relay.on_plain(b"data: a\n\ndata: b\n\n", 2)
    rig.relay.on_events([OUT, FINISH])
    rig.relay.on_events([USAGE, DONE])
    assert rig.client.writes == [raws(OUT), b"data: a\n\ndata: b\n\n", raws(OUT, FINISH), raws(USAGE, DONE)]
    assert rig.client.finished
    assert rig.relay.tally.done


def test_a_whole_stream_in_one_read_is_started_and_finished() -> None:
    rig = Rig()
    rig.relay.on_events([ROLE, OUT, FINISH, USAGE, DONE])
    assert rig.client.data == raws(ROLE, OUT, FINISH, DONE)
    assert rig.client.finished


def test_usage_is_shown_only_to_a_client_that_asked() -> None:
    for asked in (False, True):
        rig = Rig(include_usage=asked)
        rig.relay.on_events([OUT, FINISH, USAGE, DONE])
        assert (USAGE.raw in rig.client.data) is asked
        assert (rig.relay.tally.output_tokens, rig.relay.tally.input_tokens) == ((3, "usage"), 7)


def test_a_read_that_was_only_an_unwanted_usage_event_writes_nothing() -> None:
    rig = Rig()
    rig.relay.on_events([OUT])
    rig.relay.on_events([FINISH])
    rig.relay.on_events([USAGE])
    assert rig.client.data == raws(OUT, FINISH)


def test_without_usage_events_are_counted_passed_ones_too() -> None:
    rig = Rig(takes_chunks=True)
    rig.relay.on_events([ROLE, OUT])
    assert rig.flow.writer is not None
    rig.flow.passed = 10
    rig.relay.on_plain(b"data: a\n\n", 1)
    rig.relay.on_events([FINISH, DONE])
    assert rig.relay.tally.output_tokens == (13, "events")
    assert rig.relay.tally.input_tokens is None


@pytest.mark.parametrize("counts", [{"completion_tokens": None}, {"completion_tokens": 0}, {}], ids=str)
def test_a_usage_without_a_count_is_no_accounting(counts: dict[str, Any]) -> None:
    rig = Rig()
    usage = StreamEvent(EventKind.USAGE, b"data: u\n\n", {}, None, counts)
    rig.relay.on_events([OUT, FINISH, usage, DONE])
    assert rig.relay.tally.output_tokens == (2, "events")


def test_times_of_first_output_and_finish() -> None:
    rig = Rig()
    rig.clock.now_s = 5.0
    rig.relay.on_events([ROLE])
    assert rig.relay.tally.first_output_at is None
    rig.relay.on_events([OUT])
    rig.clock.now_s = 9.0
    rig.relay.on_events([FINISH, DONE])
    assert (rig.relay.tally.first_output_at, rig.relay.tally.finished_at) == (5.0, 9.0)


def test_a_client_without_raw_chunks_gets_none() -> None:
    rig = Rig(takes_chunks=False)
    rig.relay.on_events([OUT])
    assert rig.flow.writer is None


def test_a_slow_client_pauses_the_engine() -> None:
    rig = Rig()
    rig.relay.on_events([OUT])
    assert rig.client.on_pause is not None and rig.client.on_resume is not None
    rig.client.on_pause()
    assert rig.flow.paused
    rig.client.on_resume()
    assert not rig.flow.paused


# --- bad ends ---


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([ERROR, DONE], "error_object"),
        ([bad("abort"), DONE], "bad_finish"),
        ([bad("error"), USAGE, DONE], "bad_finish"),
        ([DONE], "early_end"),
    ],
)
def test_a_bad_end_is_withheld_with_all_that_follows(events: list[StreamEvent], kind: str) -> None:
    rig = Rig(include_usage=True)
    rig.relay.on_events([OUT])
    rig.relay.on_events([OUT, *events])
    assert rig.client.data == raws(OUT, OUT)
    assert not rig.client.finished
    assert rig.fault() == kind
    assert not rig.relay.tally.done


# --- the end of the whole answer ---


def test_the_end_is_told_before_its_bytes_leave() -> None:
    rig = Rig()
    rig.relay.on_events([OUT])
    rig.relay.on_events([FINISH])
    assert rig.written_at_end == []
    rig.relay.on_events([DONE])
    assert rig.written_at_end == [2]
    assert len(rig.client.writes) == 3


def test_the_end_of_an_answer_that_came_in_one_read_is_told_before_it_leaves_too() -> None:
    rig = Rig()
    rig.relay.on_events([ROLE, OUT, FINISH, DONE])
    assert rig.written_at_end == [0]
    assert rig.client.writes != []


@pytest.mark.parametrize("event", [ERROR, bad("abort")])
def test_an_answer_that_breaks_off_has_no_end(event: StreamEvent) -> None:
    rig = Rig()
    rig.relay.on_events([OUT])
    rig.relay.on_events([event])
    assert rig.written_at_end == []


def test_nobody_has_got_the_end_when_the_client_has_left() -> None:
    rig = Rig()
    rig.relay.on_events([OUT])
    rig.client.gone = True
    rig.relay.on_events([FINISH, DONE])
    assert rig.written_at_end == []
