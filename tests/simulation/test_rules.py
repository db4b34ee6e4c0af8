"""Each rule holds under its schedule, and is noticed when it is broken: tests of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.rules import ELSEWHERE, FLAGS, RULES
from tests.simulation.stage import play
from tests.simulation.world import Plan, simulate
from tests.support.broken_rules import BREAKS, Break

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", RULES)
def test_the_schedule_harms_nobody_while_the_rule_holds(name: str) -> None:
    error = play(RULES[name].scene).error
    assert error == ""


@pytest.mark.parametrize("name", RULES)
def test_the_broken_rule_is_caught(name: str) -> None:
    rule = RULES[name]
    error = play(rule.scene, rule.breach).error
    assert error.startswith(f"Violation: {rule.caught}:")


def test_every_breach_belongs_to_a_rule() -> None:
    assert {rule.broken for rule in RULES.values()} == set(BREAKS)


def test_every_marked_rule_has_a_test_that_fails_without_it() -> None:
    covered = {rule.flag for rule in RULES.values() if rule.flag} | set(ELSEWHERE)
    assert covered == set(FLAGS)
    for test in ELSEWHERE.values():
        path, name = test.split("::")
        assert f"def {name}(" in (ROOT / path).read_text()


def test_the_documentation_lists_every_rule() -> None:
    told = (ROOT / "docs" / "development.md").read_text()
    rows = [f"| {rule.says} | `{name}` | {rule.broken} |" for name, rule in RULES.items()]
    rows += [f"| {FLAGS[flag]} | `{test}` | |" for flag, test in ELSEWHERE.items()]
    assert [row for row in rows if row not in told] == []


@pytest.mark.parametrize(
    ("broken", "kind", "caught"),
    [
        ("TtlInsteadOfObservation", "store-clock-stepped", "I1"),
        ("HalfTheWatch", "partitions", "I1"),
        ("OwnTtlOnly", "mixed-ttl", "I1"),
        ("NoMarker", "store-emptied", "I1"),
        ("MarginZero", "clock-rates", "I1"),
        ("DeltaCounters", "lost-messages", "I4"),
    ],
)
def test_random_seeds_catch_it_too(broken: str, kind: str, caught: str) -> None:
    breach = BREAKS[broken]
    with breach.applied():
        seed = next((seed for seed in range(80) if f"{caught}:" in _error(seed, kind, breach)), None)
    assert seed is not None, f"80 seeds and nobody noticed {broken}"
    assert _error(seed, kind, Break()) == ""


def _error(seed: int, kind: str, breach: Break) -> str:
    return simulate(Plan(seed, kind, election=breach.election, margin_s=breach.margin_s)).error
