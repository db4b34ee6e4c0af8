"""What counts as two owners at one instant."""

from __future__ import annotations

import pytest

from narwhal.cli.witness import Yes, overlaps


def yes(url: str, epoch: int, *, asked: float, told: float = 0.0) -> Yes:
    return Yes(url, epoch, asked, told or asked + 0.01)


def test_an_owner_after_another_is_no_overlap() -> None:
    answers = [yes("a", 7, asked=n / 50) for n in range(50)] + [
        yes("b", 8, asked=2 + n / 50) for n in range(50)
    ]
    assert overlaps(answers) == []


def test_an_older_owner_that_says_yes_after_a_newer_one_is_an_overlap() -> None:
    newer, older = yes("b", 8, asked=1.0), yes("a", 7, asked=1.02)
    assert overlaps([older, newer]) == [(newer, older)]


@pytest.mark.parametrize(("asked", "told"), [(0.5, 1.5), (0.99, 1.005), (1.005, 1.5)])
def test_answers_that_cross_each_other_prove_nothing(asked: float, told: float) -> None:
    assert overlaps([yes("b", 8, asked=1.0), yes("a", 7, asked=asked, told=told)]) == []


def test_two_routers_under_one_epoch_are_an_overlap_whenever_they_say_it() -> None:
    assert len(overlaps([yes("a", 7, asked=1.0), yes("b", 7, asked=5.0)])) == 1


def test_every_later_yes_of_the_older_owner_counts() -> None:
    answers = [yes("b", 8, asked=1.0), *(yes("a", 7, asked=2.0 + n) for n in range(3))]
    assert len(overlaps(answers)) == 3
