"""The compose file's own commands, with the shipped haproxy.cfg in front: clean switches are invisible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compose_drive import RATE, SWITCHES
from tests.support.services import program

ROOT = Path(__file__).resolve().parents[2]


def in_own_network(command: list[str]) -> list[str]:
    """The file's ports are fixed: they must not meet those of this machine."""
    unshare = [program("unshare", package="util-linux"), "--net"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    return [
        *unshare,
        "sh",
        "-c",
        f'{program("ip", package="iproute2")} link set lo up && exec "$@"',
        "-",
        *command,
    ]


def played(module: str, folder: Path) -> str:
    """What the module printed, run in a network of its own."""
    for name, package in (("haproxy", ""), ("redis-server", ""), ("redis-cli", "redis-tools"), ("wget", "")):
        program(name, package=package)
    done = subprocess.run(
        in_own_network([sys.executable, "-m", module, str(folder)]),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.fail(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}", pytrace=False)
    return done.stdout


def test_ten_clean_switches_under_load_fail_no_request(tmp_path: Path) -> None:
    told = played("tests.support.compose_drive", tmp_path)
    print(told)
    found = json.loads(told.splitlines()[-1])
    assert found["seen"] == {"whole": found["asked"]}
    assert len(found["takeovers"]) == SWITCHES
    assert found["asked"] > RATE * SWITCHES


def test_an_engine_with_a_sidecar_is_drained_restarted_and_readmitted_from_the_operators_shell(
    tmp_path: Path,
) -> None:
    """configs/compose.lifecycle.yml: contract, sidecars, control listener and key."""
    told = played("tests.support.compose_maintenance", tmp_path)
    assert "\ne3 may be stopped now\n" in told
    assert "e3 stays out: the check process failed" in told
    assert "e3 is in service again: e3 passed 7 checks\n" in told
    assert [line for line in told.splitlines() if line.startswith("status")] == [
        f"status {number}" for number in (0, 1, 0, 0)
    ]
