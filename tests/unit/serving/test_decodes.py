"""serving/decodes.py: what the open streams tell of their engines, in plain numbers."""

from __future__ import annotations

from math import inf

import pytest

from narwhal.model.decoding import DecodeSeen
from narwhal.ports import EventKind, StreamEvent
from narwhal.serving.decodes import SLICE, OpenDecode, OpenDecodes
from narwhal.serving.relay import LegTally
from tests.support.clients import KeptFlow
from tests.support.ticking import TickingClock


class Stream:
    """One decode leg as its sink sees it."""

    def __init__(self, rig: Rig, iid: str, *, input_tokens: int) -> None:
        self.tally = LegTally(rig.clock)
        self.flow = KeptFlow()
        self.tally.flow = self.flow
        self.rig = rig
        self.leg: OpenDecode = rig.decodes.begin(iid, self.tally, input_tokens=input_tokens)

    def first(self) -> None:
        self.tally.take(StreamEvent(EventKind.OUTPUT, b""))

    def passes(self, events: int) -> None:
        """Events that went past the sink."""
        self.flow.passed += events

    def finish(self) -> None:
        self.tally.take(StreamEvent(EventKind.FINISH, b"", finish_reason="stop"))

    def end(self) -> None:
        self.rig.decodes.end(self.leg)


class Rig:
    def __init__(self) -> None:
        self.clock = TickingClock(now_s=1000.0)
        self.decodes = OpenDecodes(self.clock)

    def stream(self, iid: str = "d0", *, input_tokens: int = 100) -> Stream:
        return Stream(self, iid, input_tokens=input_tokens)

    def after(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def take(self) -> dict[str, DecodeSeen]:
        for _ in self.decodes.look():
            pass
        return {seen.iid: seen for seen in self.decodes.take()}

    def interval(self, iid: str = "d0") -> float | None:
        seen = self.take().get(iid)
        return None if seen is None else seen.interval_s


def test_the_interval_is_time_by_tokens_since_the_look_before() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.after(1.0)
    stream.passes(50)
    assert rig.interval() == pytest.approx(0.02)
    rig.after(1.0)
    stream.passes(25)
    assert rig.interval() == pytest.approx(0.04)


def test_the_time_of_a_stream_begins_with_its_first_token() -> None:
    rig = Rig()
    stream = rig.stream()
    rig.after(5.0)  # prefill and transfer
    assert rig.interval() is None
    rig.after(0.5)
    stream.first()
    rig.after(0.5)
    stream.passes(25)
    assert rig.interval() == pytest.approx(0.02)


def test_a_stream_that_began_and_ended_between_two_passes_counts() -> None:
    rig = Rig()
    rig.take()
    stream = rig.stream()
    rig.after(0.25)
    stream.first()
    rig.after(0.5)
    stream.passes(9)
    stream.finish()
    rig.after(0.125)  # usage, [DONE]
    stream.end()
    rig.after(0.125)
    assert rig.interval() == pytest.approx(0.05)
    assert len(rig.decodes) == 0


def test_nothing_counts_behind_the_finish_reason() -> None:
    """A stream whose client is slow to take the end stays in the accounts of placement for a while."""
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.after(1.0)
    stream.passes(9)
    stream.finish()
    rig.after(3.0)
    assert rig.interval() == pytest.approx(0.1)
    rig.after(1.0)
    assert rig.interval() is None
    stream.end()
    assert rig.interval() is None


def test_a_stalled_gap_is_an_observation_while_it_lasts_and_when_it_ends() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.after(1.0)
    stream.passes(50)
    rig.take()
    told = []
    for _ in range(3):
        rig.after(1.0)
        told.append(rig.interval())
    assert told == [1.0, 2.0, 3.0]
    rig.after(1.0)
    stream.passes(10)
    assert rig.interval() == pytest.approx(0.4)


def test_a_stream_that_stalls_behind_its_first_token_is_seen() -> None:
    rig = Rig()
    rig.stream().first()
    rig.after(2.0)
    assert rig.interval() == 2.0


def test_a_gap_no_longer_than_the_intervals_before_it_is_no_observation() -> None:
    """Tokens that come slower than passes: half of the passes see none, and that is no stall."""
    rig = Rig()
    stream = rig.stream()
    stream.first()
    told = []
    for number in range(1, 9):
        rig.after(1.0)
        if number % 2 == 0:
            stream.passes(1)
        told.append(rig.interval())
    assert told[1:] == [2.0, None, 2.0, None, 2.0, None, 2.0]


def test_one_stalled_stream_among_many_is_one_slow_interval() -> None:
    rig = Rig()
    streams = [rig.stream() for _ in range(10)]
    for stream in streams:
        stream.first()
    rig.after(1.0)
    for stream in streams:
        stream.passes(50)
    rig.take()
    rig.after(1.0)
    for stream in streams[1:]:
        stream.passes(50)
    assert rig.interval() == pytest.approx(10.0 / 451)


def test_a_leg_that_broke_off_tells_its_tokens_and_not_the_silence_behind_them() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.after(1.0)
    stream.passes(10)
    stream.end()
    assert rig.interval() == pytest.approx(0.1)
    silent = rig.stream()
    silent.first()
    rig.after(60.0)
    silent.end()
    assert rig.interval() is None


def test_a_leg_that_never_had_a_token_tells_nothing() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.tally.flow = None
    rig.after(3.0)
    assert rig.interval() is None
    stream.end()
    assert rig.interval() is None


def test_a_slow_client_is_no_evidence_about_the_engine() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.after(1.0)
    stream.passes(50)
    assert rig.interval() == pytest.approx(0.02)
    stream.flow.pause()
    for _ in range(3):
        rig.after(1.0)
        assert rig.interval() is None
    rig.after(0.5)
    stream.flow.resume()
    stream.passes(175)  # what had piled up
    rig.after(0.5)
    assert rig.interval() is None, "the interval in which it went on"
    rig.after(1.0)
    stream.passes(50)
    assert rig.interval() == pytest.approx(0.02)


def test_a_pause_that_began_and_ended_between_two_passes_is_known() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.after(0.5)
    stream.flow.pause()
    stream.flow.resume()
    stream.passes(10)
    rig.after(0.5)
    assert rig.interval() is None


def test_engines_are_told_apart() -> None:
    rig = Rig()
    fast, slow = rig.stream("d0"), rig.stream("d1")
    for stream, events in ((fast, 50), (slow, 10)):
        stream.first()
        stream.passes(events)
    rig.after(1.0)
    assert {iid: seen.interval_s for iid, seen in rig.take().items()} == {
        "d0": pytest.approx(0.02),
        "d1": pytest.approx(0.1),
    }


def test_sequences_and_tokens_are_means_over_the_time_since_the_pass_before() -> None:
    rig = Rig()
    rig.take()
    long, late = rig.stream(input_tokens=1000), rig.stream(input_tokens=3000)
    long.first()
    rig.after(0.5)
    long.passes(10)
    late.first()
    rig.after(0.5)
    long.passes(9)
    late.passes(9)
    seen = rig.take()["d0"]
    assert seen.sequences == pytest.approx(1.5)
    assert seen.kv_tokens == pytest.approx((1020 * 1.0 + 3010 * 0.5) / 1.5 * 1.5)


def test_a_busy_engine_has_at_least_one_sequence_however_short_it_was() -> None:
    rig = Rig()
    rig.take()
    stream = rig.stream(input_tokens=500)
    stream.first()
    rig.after(0.1)
    stream.passes(9)
    stream.finish()
    stream.end()
    rig.after(0.9)
    seen = rig.take()["d0"]
    assert (seen.sequences, seen.kv_tokens) == (1.0, pytest.approx(511))


def test_a_look_without_a_take_loses_nothing() -> None:
    """A pass that came late takes nothing; the next one covers both."""
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.after(1.0)
    stream.passes(10)
    for _ in rig.decodes.look():
        pass
    rig.after(1.0)
    stream.passes(30)
    assert rig.interval() == pytest.approx(2.0 / 40)


def test_many_streams_are_looked_at_in_pieces_and_one_that_ends_meanwhile_counts_once() -> None:
    rig = Rig()
    streams = [rig.stream() for _ in range(3 * SLICE)]
    for stream in streams:
        stream.first()
        stream.passes(10)
    rig.after(1.0)
    looks = rig.decodes.look()
    next(looks)
    for stream in streams:
        stream.end()
    pieces = 1 + sum(1 for _ in looks)
    assert pieces == 3
    (seen,) = rig.decodes.take()
    assert seen.interval_s == pytest.approx(0.1)
    assert seen.sequences == pytest.approx(3 * SLICE)


# --- signs of life ---


def test_an_engine_is_alive_while_any_of_its_streams_brings_tokens() -> None:
    rig = Rig()
    assert rig.decodes.quiet_s("d0") == inf
    one, other = rig.stream(), rig.stream()
    assert rig.decodes.quiet_s("d0") == inf, "a head is no token"
    one.first()
    other.first()
    assert rig.decodes.quiet_s("d0") == 0.0
    rig.take()
    rig.after(3.0)
    assert (rig.decodes.quiet_s("d0"), rig.decodes.quiet_s("d1")) == (3.0, inf)
    other.passes(1)
    assert rig.decodes.quiet_s("d0") == 0.0
    rig.take()
    rig.after(1.0)
    assert rig.decodes.quiet_s("d0") == 1.0


def test_pings_and_comments_are_no_sign_of_life() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.take()
    for _ in range(10):
        rig.after(1.0)
        stream.tally.take(StreamEvent(EventKind.OTHER, b": ping\n\n"))
        rig.take()
    assert rig.decodes.quiet_s("d0") == 10.0


def test_streams_that_have_ended_were_a_sign_of_life_and_those_without_a_token_were_none() -> None:
    rig = Rig()
    failed = rig.stream("d1")
    failed.end()
    short = rig.stream()
    short.first()
    short.finish()
    short.end()
    rig.after(2.0)
    assert (rig.decodes.quiet_s("d0"), rig.decodes.quiet_s("d1")) == (2.0, inf)


def test_a_stream_whose_client_is_slow_is_one_too() -> None:
    rig = Rig()
    stream = rig.stream()
    stream.first()
    rig.take()
    rig.after(5.0)
    stream.flow.pause()
    stream.passes(3)
    rig.take()
    assert rig.decodes.quiet_s("d0") == 0.0
