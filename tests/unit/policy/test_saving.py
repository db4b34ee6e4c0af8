"""Writing the checkpoint: what is told once, what is only counted, and from when on a router is unfit."""

from __future__ import annotations

from narwhal.policy.saving import Saves


def test_the_first_failure_is_news_and_the_same_ones_after_it_are_counted() -> None:
    saves = Saves(limit=3)
    assert [saves.failed("No space left on device") for _ in range(5)] == [True, False, False, False, False]
    assert saves.streak == 5


def test_another_reason_is_news() -> None:
    saves = Saves(limit=3)
    assert saves.failed("No space left on device")
    assert saves.failed("Permission denied")
    assert saves.streak == 2


def test_a_router_is_unfit_from_the_limit_on() -> None:
    saves = Saves(limit=3)
    told = []
    for _ in range(4):
        saves.failed("Not a directory")
        told.append(saves.broken)
    sentence = "its checkpoint cannot be written: Not a directory"
    assert told == ["", "", sentence, sentence]


def test_one_good_write_ends_it() -> None:
    saves = Saves(limit=3)
    for _ in range(4):
        saves.failed("Not a directory")
    assert saves.failing
    assert saves.written() == 4
    assert (saves.failing, saves.broken, saves.written()) == (False, "", 0)
    assert saves.failed("Not a directory"), "the next streak is told anew"
    assert saves.broken == ""
