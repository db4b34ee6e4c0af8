"""Each rule holds under its schedule, and is noticed when it is broken: tests of the tests."""

from __future__ import annotations

import pytest

from tests.simulation.rules import RULES
from tests.simulation.stage import play
from tests.simulation.world import Plan, simulate
from tests.support.broken_rules import BREAKS, Break


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
