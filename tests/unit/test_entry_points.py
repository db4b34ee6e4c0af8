"""Every command that is installed, and every one of the umbrella, is there."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from narwhal.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_installed_command_has_its_function(name: str) -> None:
    module, _, function = SCRIPTS[name].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_of_the_umbrella_has_its_module(name: str) -> None:
    assert callable(importlib.import_module(f"narwhal.cli.{name}").main)


@pytest.mark.parametrize("name", ["narwhal-serve", "narwhal-check", "narwhal-profile", "narwhal-attest"])
def test_a_command_stands_alone_and_under_the_umbrella(name: str) -> None:
    assert name in SCRIPTS
    assert f"({name})" in COMMANDS[name.removeprefix("narwhal-")]


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_interrupt_while_modules_are_loaded_is_no_traceback(name: str) -> None:
    """Ctrl-C comes as the command's own module is looked for."""
    module, _, function = SCRIPTS[name].partition(":")
    script = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has it ignored

class Interrupts:
    def find_spec(self, wanted, path=None, target=None):
        if wanted.startswith("narwhal.cli.") and wanted != "narwhal.cli.main":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from {module} import {function}
sys.argv[1:] = ["config", "--help"]
sys.exit({function}())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env=env, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
