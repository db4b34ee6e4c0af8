"""The watching rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.lease import Incarnation, LeaseState, LeaseVersion, LeaseView
from narwhal.policy.watch import Watch

INC = Incarnation("a" * 40, "b" * 40)
OTHER = Incarnation("c" * 40, "b" * 40)
HELD = LeaseView(INC, "master", LeaseState.HELD, LeaseVersion("t", 3), epoch=7, ttl_ms=5000)
RELEASED = replace(HELD, state=LeaseState.RELEASED, record_inc=str(INC), sure=True)


def watch(ttl_s: float = 5.0, ttl_s_max: float = 0.0) -> Watch:
    return Watch(ttl_s=ttl_s, ttl_s_max=ttl_s_max)


def test_an_unchanged_version_is_ripe_after_the_span_from_the_first_sight() -> None:
    seen = watch()
    seen.see(HELD, 10.0)
    seen.see(HELD, 12.0)
    assert seen.ripe_at == 15.0


@pytest.mark.parametrize(
    "changed",
    [
        replace(HELD, version=LeaseVersion("t", 4)),
        replace(HELD, version=LeaseVersion("u", 3)),
        replace(HELD, inc=OTHER),
    ],
    ids=["seq", "token", "incarnation"],
)
def test_any_change_begins_the_watch_anew(changed: LeaseView) -> None:
    seen = watch()
    seen.see(HELD, 10.0)
    seen.see(changed, 12.0)
    assert seen.ripe_at == 17.0


def test_nothing_stored_and_a_replicas_view_are_not_watched() -> None:
    seen = watch()
    seen.see(HELD, 10.0)
    seen.see(LeaseView(INC, "master"), 11.0)
    assert seen.ripe_at is None
    seen.see(replace(HELD, role="slave"), 12.0)
    assert seen.ripe_at is None


def test_a_silence_longer_than_the_span_begins_the_watch_anew() -> None:
    seen = watch()
    seen.see(HELD, 10.0)
    seen.see(HELD, 15.5)
    assert seen.ripe_at == 20.5


@pytest.mark.parametrize(
    ("own", "remembered", "stored_ms", "span"),
    [(5, 0, 5000, 5), (5, 0, 9000, 9), (8, 0, 5000, 8), (5, 12, 5000, 12)],
    ids=["equal", "the record's", "the own", "ever seen"],
)
def test_the_span_is_the_greatest_ttl(own: float, remembered: float, stored_ms: int, span: float) -> None:
    seen = watch(own, remembered)
    seen.see(replace(HELD, ttl_ms=stored_ms), 0.0)
    assert seen.ripe_at == span


def test_the_span_never_shrinks_again() -> None:
    seen = watch()
    seen.see(replace(HELD, ttl_ms=9000), 0.0)
    seen.see(replace(HELD, version=LeaseVersion("u", 0), ttl_ms=5000), 1.0)
    assert seen.ripe_at == 10.0


def test_a_surely_released_lease_is_ripe_at_once() -> None:
    seen = watch()
    seen.see(HELD, 10.0)
    seen.see(RELEASED, 11.0)
    assert seen.ripe_at == 11.0


@pytest.mark.parametrize(
    "doubtful", [replace(RELEASED, sure=False), replace(RELEASED, record_inc=str(OTHER))], ids=["sure", "inc"]
)
def test_a_doubtful_release_is_watched_for_the_span(doubtful: LeaseView) -> None:
    seen = watch()
    seen.see(doubtful, 10.0)
    assert seen.ripe_at == 15.0
