"""The whole cluster under mixed faults, many seeds. `make sim SEEDS=3000` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.campaign import Plan, campaign, simulate
from tests.support.broken_rules import BROKEN

ROOT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("SIM_SEEDS", "300"))


def test_invariants_hold_under_mixed_faults() -> None:
    outcomes = campaign(Plan(seed) for seed in range(SEEDS))
    failed = sorted((outcome for outcome in outcomes if outcome.error), key=lambda one: one.seed)
    told = "\n".join(f"seed {outcome.seed}: {outcome.error}" for outcome in failed)
    assert not failed, (
        f"again with: python -m tests.simulation.campaign --first SEED --seeds 1 --trace\n{told}"
    )
    # The runs were worth something: ownership changed hands, and there was an owner most of the time.
    assert sum(outcome.openings for outcome in outcomes) > 2 * SEEDS
    assert sum(outcome.owned_s for outcome in outcomes) > 0.5 * SEEDS * Plan(0).duration_s


def test_same_seed_same_trace() -> None:
    first, second = simulate(Plan(7)), simulate(Plan(7))
    assert first.trace == second.trace
    assert first.trace != simulate(Plan(8)).trace


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_same_trace_in_processes_with_other_hash_seeds(hash_seed: str) -> None:
    code = "from tests.simulation.campaign import Plan, simulate; print(simulate(Plan(11, 40.0)).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == simulate(Plan(11, 40.0)).digest


@pytest.mark.parametrize(
    ("rule", "faults"),
    [
        ("TtlInsteadOfObservation", ("step_clock", "late")),
        ("HalfTheWatch", ("pause", "partition")),
        ("OwnTtlOnly", ("crash", "partition")),
    ],
)
def test_a_broken_rule_is_caught(rule: str, faults: tuple[str, ...]) -> None:
    caught = (
        outcome
        for seed in range(40)
        if "I1" in (outcome := simulate(Plan(seed, 60.0, faults, election=BROKEN[rule]))).error
    )
    first = next(caught, None)
    assert first is not None, f"40 seeds and nobody noticed that the rule {rule} is broken"
    assert simulate(Plan(first.seed, 60.0, faults)).error == ""
