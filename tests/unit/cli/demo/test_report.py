"""The demo's promises: each one broken on purpose is told, an honest run is not."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from narwhal.cli.demo.report import broken_promises, table
from narwhal.cli.demo.story import Act, Outcome
from narwhal.cli.demo.traffic import Tally
from narwhal.cli.demo.watch import Standing


def standing(owner: str, epoch: int, served: int) -> Standing:
    return Standing(owner, epoch, {"offered": served, "served": served})


def tally(completed: int, *, cut: tuple[float, ...] = ()) -> Tally:
    """Requests that ended at seconds 1, 2, 3..."""
    return Tally(completed + len(cut), 7, [float(n + 1) for n in range(completed)], list(cut), [])


def honest() -> Outcome:
    """Killed at 10.05 with two streams open, switched at 20.5; every request that ended is counted."""
    kill = Act(
        "kill -9",
        10.05,
        4.5,
        (standing("a", 5, 9), tally(9)),
        (standing("b", 6, 15), tally(15, cut=(10.1, 10.2))),
    )
    switch = Act(
        "clean switch",
        20.5,
        0.1,
        (standing("b", 6, 20), tally(20, cut=(10.1, 10.2))),
        (standing("a", 7, 25), tally(25, cut=(10.1, 10.2))),
    )
    return Outcome((kill, switch), tally(30, cut=(10.1, 10.2)), standing("a", 7, 30), overlaps=0)


def with_tally(outcome: Outcome, **changes: object) -> Outcome:
    return replace(outcome, tally=replace(outcome.tally, **changes))


def test_an_honest_run_breaks_nothing() -> None:
    assert list(broken_promises(honest())) == []


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (replace(honest(), overlaps=1), "at once"),
        (replace(honest(), last=standing("a", 7, 31)), "counted 31 served"),
        (replace(honest(), last=standing("a", 7, 29)), "missing from the totals"),
        (replace(honest(), last=standing("a", 7, 23)), "went back from 25 to 23"),
        (with_tally(honest(), failures=["status 502: decode"], started=33), "failed: status 502"),
        (with_tally(honest(), cut=[10.1, 10.2, 20.6], started=33), "cut without a kill"),
        (with_tally(honest(), started=33), "ended in no way"),
    ],
)
def test_each_broken_promise_is_told(outcome: Outcome, word: str) -> None:
    assert [sentence for sentence in broken_promises(outcome) if word in sentence]


@pytest.mark.parametrize(
    ("changed", "word"),
    [(standing("b", 5, 14), "epoch went from 5 to 5"), (standing("a", 6, 14), "still owns")],
)
def test_a_change_of_owner_that_was_none_is_told(changed: Standing, word: str) -> None:
    outcome = honest()
    kill = replace(outcome.acts[0], after=(changed, outcome.acts[0].after[1]))
    assert [line for line in broken_promises(replace(outcome, acts=(kill, outcome.acts[1]))) if word in line]


def test_the_table_has_every_figure_before_and_after() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(table(honest()))
    for words in ("kill -9", "clean switch", "4.50 s", "5 → 6", "9 → 15", "refused", "cut streams"):
        assert words in out.getvalue()
