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


def test_ten_clean_switches_under_load_fail_no_request(tmp_path: Path) -> None:
    for name, package in (("haproxy", ""), ("redis-server", ""), ("redis-cli", "redis-tools"), ("wget", "")):
        program(name, package=package)
    command = in_own_network([sys.executable, "-m", "tests.support.compose_drive", str(tmp_path)])
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.fail(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}", pytrace=False)
    print(done.stdout)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["seen"] == {"whole": found["asked"]}
    assert len(found["takeovers"]) == SWITCHES
    assert found["asked"] > RATE * SWITCHES
