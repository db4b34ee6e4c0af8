"""What docs/lifecycle.md and the heads of the units tell an operator, typed into a real shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from narwhal.cli.engine.launch import launch_of
from narwhal.config.load import read_fleet
from tests.support.fleets import contracted, write_fleet
from tests.support.processes import ROOT

UNITS = ROOT / "configs/systemd"
RECORDER = """#!{python}
import json, os, sys
told = {{"pid": os.getpid(), "words": sys.argv[1:], "env": dict(os.environ)}}
open({seen!r}, "w").write(json.dumps(told))
"""
KEY = "k-1/2+3="


class Host:
    """A folder for `/etc/narwhal`, a `vllm` that writes down how it was started, and `narwhal`."""

    def __init__(self, folder: Path, *, keyed: bool) -> None:
        self.etc = folder / "etc"
        self.engine = self.etc / "engines/e0"
        self.seen = folder / "seen.json"
        self.programs = folder / "bin"
        self.programs.mkdir()
        self._program("vllm", RECORDER.format(python=sys.executable, seen=str(self.seen)))
        self._program("narwhal", f'#!/bin/sh\nexec {sys.executable} -m narwhal.cli "$@"\n')
        self._program("systemctl", "#!/bin/sh\n")
        changes = {"engine__engine_api_key_env": "ENGINE_KEY"} if keyed else {}
        self.etc.mkdir()
        self.fleet = write_fleet(self.etc, contracted(**changes))

    def _program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def path_of(self, text: str) -> str:
        return text.replace("/etc/narwhal", str(self.etc)).replace("%i", "e0")

    def typed(self, lines: list[str]) -> None:
        """By root in a shell, one after the other."""
        script = self.path_of("set -e\n" + "\n".join(lines))
        env = {"PATH": f"{self.programs}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "ENGINE_KEY": KEY}
        subprocess.run(["/bin/sh", "-c", script], env=env, cwd="/", check=True, timeout=60)

    def unit_env(self, unit: str) -> dict[str, str]:
        """The variables that systemd gives it: of the files that it names, with `-` if they are there."""
        env = {"PATH": f"{self.programs}:/usr/bin:/bin"}
        for name in re.findall(r"(?m)^EnvironmentFile=(.+)$", (UNITS / unit).read_text("utf-8")):
            path = Path(self.path_of(name.removeprefix("-")))
            if path.exists() or not name.startswith("-"):
                env |= dict(word.split("=", 1) for word in shlex.split(path.read_text()))
        return env

    def start(self, unit: str) -> subprocess.Popen[str]:
        """`ExecStart=` as systemd runs it: in `/`, without a shell, a bare `$NAME` split at blanks."""
        env = self.unit_env(unit)
        line = re.search(r"(?m)^ExecStart=(.+)$", (UNITS / unit).read_text("utf-8"))
        assert line is not None
        words: list[str] = []
        for word in self.path_of(line[1]).split():
            bare = re.fullmatch(r"\$(\w+)", word)
            whole = re.sub(r"\$\{(\w+)\}", lambda found: env.get(found[1], ""), word)
            words += env.get(bare[1], "").split() if bare else [whole]
        if words[0].endswith("/narwhal-attest"):
            words[:1] = [sys.executable, "-m", "narwhal.cli.attest"]
            env["PYTHONPATH"] = str(ROOT)
        return subprocess.Popen(words, env=env, cwd="/", text=True, stderr=subprocess.PIPE)


def documented() -> list[str]:
    """The shell lines of the systemd section but for the copy of the units and the start."""
    text = (ROOT / "docs/lifecycle.md").read_text("utf-8")
    block = text.split("\n## systemd\n")[1].split("```")[1]
    return [line for line in block.splitlines() if line and not line.startswith(("cp ", "systemctl "))]


def unit_file() -> str:
    """`unit.env` as the head of the engine's unit has it."""
    head = (UNITS / "vllm@.service").read_text("utf-8").split("[Unit]")[0]
    return "".join(f"{line}\n" for line in re.findall(r"(?m)^#     ([A-Z_]+=.*)$", head))


@pytest.mark.parametrize("keyed", [False, True], ids=["without-a-key", "with-a-key"])
def test_the_unit_starts_the_engine_that_the_fleet_file_wants(tmp_path: Path, keyed: bool) -> None:
    host = Host(tmp_path, keyed=keyed)
    host.typed([line for line in documented() if keyed or "engine env" not in line])
    (host.engine / "unit.env").write_text(unit_file())
    started = host.start("vllm@.service")
    _, problems = started.communicate(timeout=60)
    assert (started.returncode, problems) == (0, "")
    seen = json.loads(host.seen.read_text())
    wanted = launch_of(read_fleet(host.fleet, os.environ), "e0")
    assert seen["words"] == ["serve", *wanted.arguments]
    assert wanted.env.items() <= seen["env"].items()
    assert seen["env"].get("VLLM_API_KEY") == (KEY if keyed else None)
    assert seen["pid"] == started.pid, "signals of the unit go to the engine itself"


@pytest.mark.parametrize("keyed", [False, True], ids=["without-a-key", "with-a-key"])
def test_the_printed_line_starts_the_same_engine_in_a_shell(tmp_path: Path, keyed: bool) -> None:
    host = Host(tmp_path, keyed=keyed)
    host.typed([line for line in documented() if keyed or "engine env" not in line])
    command = "narwhal engine command --fleet /etc/narwhal/fleet.json --iid e0"
    # The paragraph that a person copies: up to the blank line before docker's.
    host.typed(["cd /etc/narwhal/engines/e0", f"{command} | sed '/^$/,$d' > copied", ". ./copied"])
    seen = json.loads(host.seen.read_text())
    assert seen["words"] == ["serve", *launch_of(read_fleet(host.fleet, os.environ), "e0").arguments]
    assert seen["env"].get("VLLM_API_KEY") == (KEY if keyed else None)


def test_an_engine_whose_key_is_missing_is_not_started(tmp_path: Path) -> None:
    host = Host(tmp_path, keyed=True)
    host.typed(documented())
    (host.engine / "unit.env").write_text(unit_file())
    (host.engine / "container.env").unlink()
    started = host.start("vllm@.service")
    _, problems = started.communicate(timeout=60)
    assert started.returncode != 0
    assert "VLLM_API_KEY: is not set: it is in container.env" in problems
    assert not host.seen.exists()


@pytest.mark.parametrize("options", [True, False], ids=["with-options", "without"])
def test_the_sidecars_unit_takes_its_options_from_the_same_file(tmp_path: Path, options: bool) -> None:
    host = Host(tmp_path, keyed=True)
    host.typed(documented())
    shutil.copy(ROOT / "configs/attestation.json", host.engine)
    told = unit_file().replace("10.0.0.1:8000", "127.0.0.1:9").replace("10.0.0.1", "127.0.0.1")
    assert "SIDECAR_OPTIONS=" in told
    (host.engine / "unit.env").write_text(told if options else told.split("SIDECAR_OPTIONS")[0])
    if options:
        (host.engine / "engine.env").unlink()  # what an option asks for is missed: it was read
    started = host.start("narwhal-attest@.service")
    _, problems = started.communicate(timeout=60)
    words, status = ("--engine-api-key-env", 2) if options else ("gives no answer", 1)
    assert words in problems
    assert started.returncode == status
