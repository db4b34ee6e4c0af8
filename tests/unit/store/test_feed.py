"""What a reader of the log takes for a gap."""

from __future__ import annotations

import pytest

from narwhal.errors import StoreProtocolError
from narwhal.model.handoff import LOG_START, EntryKind, LogEntry, LogPosition
from narwhal.store.feed import Continuity
from narwhal.store.handoff import log_entry


def at(epoch, n, **body):
    kind = EntryKind.ACQUIRED if n == 1 else EntryKind.DELTA
    return LogEntry(LogPosition(epoch, n), kind, body)


def gap(after, *entries, top=None):
    last = entries[-1].position if entries else after
    return Continuity().batch(after, entries, inc="i", top=top or last).gap


def test_following_entries_are_no_gap():
    assert not gap(LogPosition(5, 2), at(5, 3), at(5, 4))
    assert not gap(LogPosition(5, 2))


def test_a_missing_entry_is_a_gap_wherever_it_is():
    assert gap(LogPosition(5, 2), at(5, 4))
    assert gap(LogPosition(5, 2), at(5, 3), at(5, 5))


def test_a_new_owner_that_names_our_last_entry_is_no_gap():
    assert not gap(LogPosition(5, 2), at(8, 1, after="5-2"), at(8, 2))


def test_a_new_owner_after_entries_that_we_have_not_seen_is_a_gap():
    assert gap(LogPosition(5, 2), at(8, 1, after="5-3"))
    assert gap(LogPosition(5, 2), at(8, 2))
    assert gap(LogPosition(5, 2), at(8, 1))


def test_from_the_start_only_a_log_that_begins_with_an_owner_is_whole():
    assert not gap(LOG_START, at(5, 1, after="4-9"))
    assert gap(LOG_START, at(5, 2))


def test_a_log_that_ends_before_our_position_was_lost():
    assert gap(LogPosition(5, 2), top=LogPosition(5, 1))
    assert gap(LogPosition(5, 2), top=LOG_START)


def test_another_incarnation_is_a_gap_once():
    continuity = Continuity()
    here = LogPosition(5, 2)
    gaps = [continuity.batch(here, (), inc=inc, top=here).gap for inc in ("i", "i", "j", "j")]
    assert gaps == [False, False, True, False]


@pytest.mark.parametrize(
    "words",
    [
        (b"5-1", b"unknown", b"\x80"),
        (b"5-1", b"\xff", b"\x80"),
        (b"5-1", b"delta", b"\x93"),
        (b"5-1", b"delta", b"\xc1"),
        (b"5-1", b"delta", b"\x01"),
    ],
)
def test_an_entry_that_cannot_be_read_keeps_its_place_and_is_a_gap(words):
    entry = log_entry(words)
    assert (entry.position, entry.kind, entry.body) == (LogPosition(5, 1), EntryKind.UNREADABLE, {})
    assert gap(LOG_START, entry)


def test_an_entry_without_a_place_is_no_answer():
    with pytest.raises(StoreProtocolError, match="log entry"):
        log_entry((b"x", b"delta", b"\x80"))


def test_what_should_have_come_and_twice_did_not_was_trimmed():
    continuity, here = Continuity(), LogPosition(5, 2)
    tops = [LogPosition(5, 3), LogPosition(5, 4), LogPosition(5, 4), LogPosition(5, 4)]
    assert [continuity.batch(here, (), inc="i", top=top).gap for top in tops] == [False, False, True, True]
    assert not continuity.batch(LogPosition(5, 4), (), inc="i", top=LogPosition(5, 4)).gap
