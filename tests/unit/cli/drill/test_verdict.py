"""What fails a drill, and what a fault explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from narwhal.cli.drill.rows import ROWS
from narwhal.cli.drill.run import Outcome, Shot
from narwhal.cli.drill.traffic import Books, Ending
from narwhal.cli.drill.verdict import broken
from narwhal.cli.witness import Yes

AT = 100.0


def ending(how: str = "whole", *, began: float = AT - 1, ended: float = AT - 0.5, tries: int = 1) -> Ending:
    return Ending(began, began + 0.1, ended, how, tries)


def shot(takeover_s: float, *, epochs: tuple[int, int] = (7, 8), renewed_at: float = AT - 0.4) -> Shot:
    told = AT + takeover_s
    taken = Yes("http://b", epochs[1], told - 0.01, told)
    return Shot(AT, told + 0.1, ("a", "b"), epochs, renewed_at, told - 0.02, taken)


def outcome(
    name: str,
    one: Shot,
    *,
    endings: Sequence[Ending] = (),
    counted: int | None = None,
    balancer: bool = False,
) -> Outcome:
    books = Books(list(endings))
    whole = books.count("whole") if counted is None else counted
    return Outcome(name, ROWS[name], behind_balancer=balancer, shots=[one], books=books, counted=whole)


def told(found: Outcome, slack_s: float = 0.0) -> str:
    return "\n".join(broken(found, slack_s))


def test_a_takeover_within_its_goal_with_every_request_whole_holds() -> None:
    assert told(outcome("restart", shot(0.1), endings=[ending(), ending()])) == ""


def test_a_takeover_over_goal_and_slack_is_told() -> None:
    slow = outcome("restart", shot(0.5))
    assert "takeover took 0.500 s, over 0.15 s" in told(slow)
    assert told(slow, slack_s=1.0) == ""


def test_an_epoch_that_did_not_grow_is_told() -> None:
    assert "the epoch went from 7 to 7" in told(outcome("restart", shot(0.1, epochs=(7, 7))))


def test_a_change_of_owner_that_nobody_should_notice_is_told() -> None:
    quiet = replace(shot(0.0, epochs=(7, 7)), taken=None)
    assert told(outcome("store-frozen", quiet)) == ""
    assert "the owner changed" in told(outcome("store-frozen", replace(quiet, epochs=(7, 8))))


def test_a_successor_that_did_not_watch_for_the_whole_ttl_is_told() -> None:
    assert told(outcome("host", shot(4.7))) == ""
    assert "began 0.600 s before the old lease could be over" in told(outcome("host", shot(4.0)))


def test_two_owners_are_told_whatever_else_held() -> None:
    found = outcome("restart", shot(0.1))
    found.yeses = [Yes("http://b", 8, 1.0, 1.01), Yes("http://a", 7, 2.0, 2.01)]
    assert "two owners" in told(found)


def test_streams_of_a_killed_owner_may_be_cut_and_no_others() -> None:
    under_way = ending("cut", began=AT - 1, ended=AT + 0.05)
    later = ending("cut", began=AT + 1, ended=AT + 2)
    assert told(outcome("kill", shot(0.1), endings=[under_way])) == ""
    assert "1 streams were cut" in told(outcome("kill", shot(0.1), endings=[later]))
    assert "1 streams were cut" in told(outcome("yield", shot(0.1), endings=[under_way]))


def test_a_refusal_is_excused_behind_a_balancer_while_nobody_can_own() -> None:
    refused = ending("refused", began=AT + 1, ended=AT + 1.1)
    assert told(outcome("host", shot(4.7), endings=[refused], balancer=True)) == ""
    assert "1 requests failed: refused" in told(outcome("host", shot(4.7), endings=[refused]))
    assert "1 requests failed" in told(outcome("yield", shot(0.1), endings=[refused], balancer=True))
    late = ending("refused", began=AT + 9, ended=AT + 9.1)
    assert "1 requests failed" in told(outcome("host", shot(4.7), endings=[late], balancer=True))


@pytest.mark.parametrize(
    ("name", "counted", "words"),
    [
        ("restart", 2, ""),
        ("restart", 1, "1 served requests are missing"),
        ("restart", 3, "the totals count 3 served requests"),
        ("host", 1, "1 served requests are missing"),
    ],
)
def test_counts_must_be_exact(name: str, counted: int, words: str) -> None:
    found = outcome(name, shot(4.7 if name == "host" else 0.1), endings=[ending(), ending()], counted=counted)
    assert words in told(found) and bool(words) == bool(told(found))


def test_a_host_that_is_lost_may_lose_what_it_finished_at_that_moment() -> None:
    last = ending(ended=AT - 0.05)
    assert told(outcome("host", shot(4.7), endings=[ending(), last], counted=1)) == ""
