"""What is heard of one decode leg, and of a batch of them, with plain numbers for the clock."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.errors import EngineError, StreamBroken
from narwhal.measure.listener import Listener
from narwhal.measure.sweep import WINDOW_TOKENS, Together
from narwhal.ports import EventKind, StreamEvent


class Flow:
    """The end of a leg that `fail` is called on."""

    passed = 0

    def __init__(self) -> None:
        self.failed: list[EngineError] = []

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def pass_chunks(self, write: Any) -> None: ...

    def fail(self, error: EngineError) -> None:
        self.failed.append(error)


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


def token(text: str, *, kind: EventKind = EventKind.OUTPUT, finish: str | None = None) -> StreamEvent:
    return StreamEvent(kind, b"", {"choices": [{"text": text}]}, finish)


def test_tokens_are_timed_and_their_text_is_put_together() -> None:
    hand = Hand()
    listener = Listener("e0", hand.now)
    hand.at = 1.0
    listener.on_events([token("a"), token("")])
    hand.at = 1.5
    listener.on_plain(b"", 2)
    hand.at = 2.0
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    listener.on_events(
        [
            token("b", kind=EventKind.FINISH, finish="length"),
            StreamEvent(EventKind.USAGE, b"", {}, None, usage),
        ]
    )
    assert listener.ticks == [1.0, 1.0, 1.5, 1.5, 2.0]
    assert (listener.text, listener.finish_reason) == ("ab", "length")
    assert (listener.prompt_tokens, listener.completion_tokens) == (7, 5)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (token("", kind=EventKind.FINISH, finish="abort"), "bad_finish"),
        (token("", kind=EventKind.FINISH, finish="error"), "bad_finish"),
        (StreamEvent(EventKind.ERROR, b"", {"error": {}}), "error_object"),
    ],
)
def test_a_bad_end_fails_the_leg(event: StreamEvent, kind: str) -> None:
    flow, listener = Flow(), Listener("e0", Hand().now)
    listener.on_open(flow)
    listener.on_events([event])
    (error,) = flow.failed
    assert isinstance(error, StreamBroken)
    assert (error.iid, error.kind) == ("e0", kind)
    assert listener.ticks == []


def test_odd_documents_have_no_text() -> None:
    listener = Listener("e0", Hand().now)
    for document in (None, {}, {"choices": []}, {"choices": ["x"]}, {"choices": [{"text": 3}]}):
        listener.on_events([StreamEvent(EventKind.OUTPUT, b"", document)])
    assert listener.text == ""
    assert len(listener.ticks) == 5


def test_a_batch_counts_from_the_moment_that_all_speak() -> None:
    hand = Hand()
    batch = Together("e0", 2, now=hand.now)
    first, second = batch.listeners
    for _ in range(10):  # alone, and faster than it will be
        hand.at += 0.001
        first.on_plain(b"", 1)
    assert batch.speaking == 1
    hand.at = 5.0  # the second one's prefill held the first one up
    second.on_plain(b"", 1)
    for _ in range(WINDOW_TOKENS + 1):
        assert not batch.heard_enough.is_set()
        hand.at += 0.02
        first.on_plain(b"", 1)
        second.on_plain(b"", 1)
    assert batch.heard_enough.is_set()
    assert batch.interval_s == pytest.approx(0.02)
    assert batch.generated == (10 + 10 + WINDOW_TOKENS + 1 + 1 + 1 + WINDOW_TOKENS + 1) // 2


def test_reads_of_several_tokens_count_each() -> None:
    hand = Hand()
    batch = Together("e0", 1, now=hand.now)
    (only,) = batch.listeners
    only.on_plain(b"", 1)
    while not batch.heard_enough.is_set():
        hand.at += 0.04
        only.on_plain(b"", 2)
    assert batch.interval_s == pytest.approx(0.02, rel=0.1)


def test_a_slow_stream_is_waited_for() -> None:
    hand = Hand()
    batch = Together("e0", 2, now=hand.now)
    quick, slow = batch.listeners
    quick.on_plain(b"", 1)
    slow.on_plain(b"", 1)
    for _ in range(3 * WINDOW_TOKENS):
        hand.at += 0.01
        quick.on_plain(b"", 1)
    assert not batch.heard_enough.is_set()
    for _ in range(WINDOW_TOKENS + 1):
        hand.at += 0.03
        slow.on_plain(b"", 1)
    assert batch.heard_enough.is_set()
    assert batch.interval_s == pytest.approx((0.01 + 0.03) / 2)


def test_a_batch_that_says_nothing_has_no_interval() -> None:
    assert Together("e0", 3, now=Hand().now).speaking == 0
