"""Faults and takeovers at random under load. SOAK_MINUTES sets the length (5 in CI, half a minute elsewhere),
SOAK_SEED repeats one."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.soak.run import soak

MINUTES = float(os.environ.get("SOAK_MINUTES", "5" if os.environ.get("CI") else "0.5"))


def test_everything_holds_under_random_faults_and_takeovers(tmp_path: Path) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    report = soak(tmp_path / "soak", seed, minutes=MINUTES)
    print(report.text())
    assert report.breaches == [], report.text()
