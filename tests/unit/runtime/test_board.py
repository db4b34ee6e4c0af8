"""runtime/warden/board.py: what was written before the writer ended, and nothing half."""

from __future__ import annotations

import secrets

from hypothesis import given
from hypothesis import strategies as st

from narwhal.model.legacy import Legacy, ToldToken
from narwhal.model.request import Counters, Outcome
from narwhal.policy.totals import Totals
from narwhal.runtime.warden.board import Board


def test_a_new_board_tells_nothing() -> None:
    board = Board()
    assert board.legacy() == Legacy()
    assert board.legacy().empty and board.beats == 0


def test_the_longest_names_and_tokens_fit() -> None:
    board, router_id, run = Board(), "r" * 128, secrets.token_hex(16)
    token = secrets.token_hex(32)
    board.name(router_id, run)
    board.tell(token, 2**52)
    assert board.legacy() == Legacy(router_id, run, Counters(), (ToldToken(token, 2**52),))


def test_the_last_two_tokens_are_kept_newest_first() -> None:
    board = Board()
    for number in range(20):
        board.tell(f"token-{number}", number)
        told = board.legacy().tokens
        expected = [f"token-{n}" for n in range(number, max(number - 2, -1), -1)]
        assert [one.token for one in told] == expected
        assert told[0].floor == number


def test_an_acquire_that_is_tried_again_pushes_no_older_token_out() -> None:
    board = Board()
    for token in ("a", "b", "b", "b"):
        board.tell(token, 1)
    assert [one.token for one in board.legacy().tokens] == ["b", "a"]


@given(st.lists(st.sampled_from(Outcome), max_size=40))
def test_every_count_of_a_run_is_there_at_once(outcomes: list[Outcome]) -> None:
    board, totals = Board(), Totals("run")
    totals.watchers.append(lambda: board.count(totals.own_counts))
    for outcome in outcomes:
        totals.finished(outcome)
        totals.missed_slo()
        assert board.legacy().counters == totals.own


def test_a_write_that_was_not_finished_leaves_the_one_before() -> None:
    """The counters are written, the word that makes them count is not: as a SIGKILL in between."""

    class Killed(Board):
        dead = False

        def _put(self, at: int, word: int) -> None:
            if not self.dead:
                super()._put(at, word)

    board = Killed()
    board.name("r", "run")
    board.tell("first", 1)
    board.count([1] * 9)
    before = board.legacy()
    board.dead = True
    board.count([2] * 9)
    board.tell("second", 2)
    assert board.legacy() == before


def test_beats_grow_until_the_loop_rests() -> None:
    board = Board()
    board.beat()
    board.beat()
    assert board.beats == 2
    board.rest()
    assert board.beats == 0
