"""docker-compose.yml as plain processes: the same commands, host names and volume paths replaced by a map.

Used inside a network namespace of its own (`python -m tests.support.compose_drive`), because the file's
ports are fixed.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
LIVENESS_S = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    command: tuple[str, ...]
    check: tuple[str, ...]
    needs: tuple[str, ...]
    volumes: tuple[tuple[str, str], ...]
    """(source, path in the container)."""
    environment: Mapping[str, str]


def services(*over: str, env: Mapping[str, str]) -> dict[str, Service]:
    """Of docker-compose.yml and the files that are laid over it. `env`: what their ${...} mean."""
    merged: dict[str, dict[str, Any]] = {}
    for name in ("docker-compose.yml", *over):
        document: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
        for service, fields in document["services"].items():
            merged[service] = _merged(merged.get(service, {}), fields)
    return {name: _service_of(name, fields, env=env) for name, fields in merged.items()}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Compose merges: mappings by key, volumes by their path in the container, the rest is replaced."""
    both = {**below, **above}
    for name in ("depends_on", "environment"):
        both[name] = {**below.get(name, {}), **above.get(name, {})}
    volumes = [*below.get("volumes", []), *above.get("volumes", [])]
    both["volumes"] = list({volume.split(":")[1]: volume for volume in volumes}.values())
    return both


def _service_of(name: str, fields: Mapping[str, Any], *, env: Mapping[str, str]) -> Service:
    volumes = [tuple(volume.split(":")[:2]) for volume in fields["volumes"]]
    kind, *check = fields.get("healthcheck", {"test": ["CMD"]})["test"]
    assert kind == "CMD"
    values = {
        key: re.sub(r"\$\{(\w+)[^}]*\}", lambda match: env[match[1]], text)
        for key, text in fields["environment"].items()
    }
    return Service(
        name, tuple(fields["command"]), tuple(check), tuple(fields["depends_on"]), tuple(volumes), values
    )


class Compose:
    """The services in a folder: each named volume a folder, each mounted file a rewritten copy."""

    def __init__(self, folder: Path, *over: str, env: Mapping[str, str] | None = None) -> None:
        self.services = services(*over, env=env or {})
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def map_of(self, service: Service) -> dict[str, str]:
        """What is replaced in a service's command and mounted files: host names, then paths."""
        hosts = dict.fromkeys(self.services, "127.0.0.1")
        paths = {
            inside: str(self._folder / service.name / Path(inside).name) for _, inside in service.volumes
        }
        return hosts | paths

    def replaced(self, service: Service, text: str) -> str:
        """Host names only where a URL, an address or an option names one: `router-a:8001`, `=engine-0`."""
        for old, new in self.map_of(service).items():
            if old.startswith("/"):
                text = text.replace(old, new)
            else:
                text = re.sub(rf"(?<=[/ ]){old}(?=:\d)|(?<=host=){old}\b", new, text)
        return text

    def lay_out(self) -> None:
        """Makes the volumes. A mounted file is copied with the map applied to its text."""
        for service in self.services.values():
            (self._folder / service.name).mkdir(parents=True, exist_ok=True)
            for source, inside in service.volumes:
                target = self._folder / service.name / Path(inside).name
                if source.startswith("./"):
                    target.write_text(self.replaced(service, (ROOT / source).read_text(encoding="utf-8")))
                else:
                    target.mkdir(exist_ok=True)

    def needed_by(self, name: str) -> set[str]:
        """The service and whatever it depends on."""
        return {name}.union(*map(self.needed_by, self.services[name].needs))

    def in_order(self, names: Iterable[str] | None = None) -> Iterator[Service]:
        """Each after what it depends on. `names`: these only."""
        wanted = [one for one in self.services.values() if names is None or one.name in names]
        done: set[str] = set()
        while len(done) < len(wanted):
            ready = [one for one in wanted if one.name not in done and done >= set(one.needs)]
            assert ready, "depends_on goes round in a circle"
            yield from ready
            done |= {one.name for one in ready}

    def start(self, name: str) -> None:
        service = self.services[name]
        command = [self.replaced(service, word) for word in service.command]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment() | service.environment,
                cwd=self._folder,
                preexec_fn=end_with_parent,
            )

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """`docker compose run --rm NAME WORDS`."""
        service = self.services[name]
        own = {key: self.replaced(service, text) for key, text in service.environment.items()}
        return subprocess.run(
            words, env=environment() | own, capture_output=True, text=True, timeout=120, check=False
        )

    def restart(self, name: str) -> None:
        """Ends when it is healthy again."""
        self.terminate(name).wait(LIVENESS_S)
        self.start(name)
        self.wait_healthy(name)

    def wait_healthy(self, name: str) -> None:
        """Runs the service's own health check until it passes."""
        command = [self.replaced(self.services[name], word) for word in self.services[name].check]
        deadline = time.monotonic() + LIVENESS_S
        while time.monotonic() < deadline:
            if self._processes[name].poll() is not None:
                break
            if (
                subprocess.run(
                    command, env=environment(), capture_output=True, timeout=30, check=False
                ).returncode
                == 0
            ):
                return
            time.sleep(0.05)
        raise AssertionError(f"{name} is not healthy\n{(self._folder / f'{name}.log').read_text()[-3000:]}")

    def terminate(self, name: str) -> subprocess.Popen[bytes]:
        process = self._processes[name]
        process.terminate()
        return process

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def end_with_parent() -> None:
    """In the child: SIGKILL when the driver ends in any way, also when it is killed itself."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def environment() -> dict[str, str]:
    """The image's: its commands and its `python` on the path, its one setting."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NARWHAL_HOST": "0.0.0.0"}
