"""Whole clusters under every fault class, many seeds each. `make sim SEEDS=3000` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.campaign import Campaign, campaign, told
from tests.simulation.classes import CLASSES
from tests.simulation.world import Plan, simulate

ROOT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("SIM_SEEDS", "200"))
SAMPLE = Plan(11)


@pytest.fixture(scope="module")
def done() -> Campaign:
    """All classes in one pool: two processes must not wait for the slowest class."""
    return campaign(Plan(seed, kind) for kind in CLASSES for seed in range(SEEDS))


@pytest.mark.parametrize("kind", CLASSES)
def test_invariants_hold(kind: str, done: Campaign) -> None:
    runs = done.of(kind)
    failed = [outcome for outcome in runs if outcome.error]
    assert not failed, told(failed)
    # The runs were worth something: there was an owner, requests were counted, the cluster lived on.
    assert len(runs) == SEEDS
    assert sum(outcome.owned for outcome in runs) > 0.15 * SEEDS
    assert sum(outcome.counted for outcome in runs) > 4 * SEEDS


def test_ownership_changes_hands(done: Campaign) -> None:
    assert sum(outcome.openings for outcome in done.of("mixed")) > 1.4 * SEEDS
    assert sum(outcome.openings for outcome in done.outcomes) > 1.3 * len(done.outcomes)


def test_same_seed_same_trace() -> None:
    first, second = simulate(SAMPLE), simulate(SAMPLE)
    assert first.trace == second.trace
    assert first.trace != simulate(Plan(SAMPLE.seed + 1)).trace


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_same_trace_in_processes_with_other_hash_seeds(hash_seed: str) -> None:
    code = f"from tests.simulation.world import Plan, simulate; print(simulate(Plan({SAMPLE.seed})).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == simulate(SAMPLE).digest
