"""Each fault switch of the simulated engine on a whole router: who is taken out, who is not, at what price.

Cases are played ahead of the tests, several fleets beside each other: nearly all of their time is waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.faults import rules
from tests.faults.pairs import ENGINES, LEAN, MORE_ENGINES, Case, engines_for
from tests.faults.play import Seen
from tests.faults.rules import Rule
from tests.faults.site import Site, fault_site
from tests.faults.switches import SWITCHES, Owed

SITES = {ENGINES: 4, MORE_ENGINES: 2}
"""By number of engines."""

Played = Callable[..., Seen]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """What was seen of a case: all cases of the tests that were collected begin at once."""
    free: dict[int, SimpleQueue[Site]] = {size: SimpleQueue() for size in SITES}

    def take_turn(case: Case) -> Seen:
        sites = free[engines_for(case)]
        site = sites.get()
        try:
            return asyncio.run(rules.played(site, case))
        finally:
            sites.put(site)

    with ExitStack() as stack:
        pools = {size: stack.enter_context(ThreadPoolExecutor(count)) for size, count in SITES.items()}
        for size, count in SITES.items():
            for number in range(count):
                folder = Path(tmp_path_factory.mktemp(f"site-of-{size}"))
                free[size].put(stack.enter_context(fault_site(folder / str(number), count=size)))
        begun: dict[Case, Future[Seen]] = {}
        for item in request.session.items:
            params = getattr(item, "callspec", None)
            if item.path == request.path and params is not None and "case" in params.params:
                case = params.params["case"]
                if case not in begun:
                    begun[case] = pools[engines_for(case)].submit(take_turn, case)
        yield lambda *case: begun[case].result()
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


def cases(*owed: Owed) -> pytest.MarkDecorator:
    alone = [(switch,) for switch in SWITCHES if switch.owed in owed]
    return pytest.mark.parametrize("case", alone, ids=rules.name_of)


PAIRS = pytest.mark.parametrize("case", LEAN, ids=rules.name_of)


def told(seen: Seen) -> str:
    """For a failed assertion: everything about the case."""
    events = [{**row, "at": round(row["at"] - seen.ordered, 2)} for row in seen.events]
    rows = [row["attempt_failures"] for row in seen.failed_rows()]
    return f"{seen.saw} out {seen.out_s} back {seen.back_s}\n{events}\n{rows}"


def holds(rule: Rule, seen: Seen) -> None:
    assert list(rule(seen)) == [], told(seen)


@cases(Owed.OUT)
def test_a_sick_engine_is_taken_out_for_the_reason_and_nobody_else(played: Played, case: Case) -> None:
    holds(rules.taken_out_and_nobody_else, played(*case))
    holds(rules.for_a_reason_that_tells_the_fault, played(*case))


@cases(Owed.OUT)
def test_it_is_out_after_eject_after_failures_beyond_those_in_flight(played: Played, case: Case) -> None:
    holds(rules.out_after_so_many_failures, played(*case))


@cases(Owed.OUT)
def test_nothing_is_sent_to_it_while_it_is_out(played: Played, case: Case) -> None:
    holds(rules.spared_while_out, played(*case))


@cases(Owed.OUT)
def test_it_is_back_within_two_probe_intervals_of_its_repair(played: Played, case: Case) -> None:
    holds(rules.back_in_time, played(*case))


@cases(Owed.KEPT)
def test_what_is_no_fault_of_the_engine_takes_nobody_out(played: Played, case: Case) -> None:
    holds(rules.nobody_taken_out, played(*case))


@cases(Owed.EDGE)
def test_broken_edges_are_avoided_and_their_engines_stay(played: Played, case: Case) -> None:
    holds(rules.edges_avoided, played(*case))


@cases(*Owed)
def test_everybody_serves_again_and_no_answer_is_wrong(played: Played, case: Case) -> None:
    holds(rules.served_again, played(*case))
    holds(rules.no_answer_is_wrong, played(*case))


@cases(*Owed)
def test_no_rule_is_forgotten_here(played: Played, case: Case) -> None:
    assert rules.breaches(played(*case)) == [], told(played(*case))


@PAIRS
@pytest.mark.parametrize("rule", rules.OF_TWO, ids=lambda rule: rule.__name__)
def test_of_two_faults_each_is_judged_by_itself(played: Played, case: Case, rule: Rule) -> None:
    holds(rule, played(*case))
