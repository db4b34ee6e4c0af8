"""Child processes of the demo: every one started here is ended here, whatever happens."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

ENGINES: Final = 4
_PR_SET_PDEATHSIG: Final = 1
_LISTENS: Final = re.compile(r" listens on .*\(pid (\d+)\)")


class StartFailed(Exception):
    """A process did not come up; the message names it and quotes the end of its log."""


class Machine:
    """One child process with its log file."""

    def __init__(self, name: str, command: Sequence[str], *, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status, -N where signal N ended it; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """With its children: it leads a session of its own."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> int | None:
        """Exit status, None when it still runs after that time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def failed(self, why: str) -> StartFailed:
        return StartFailed(f"{self.name} {why}\n{self.tail()}")


class Site:
    """The folder and the processes of one run; `close` leaves neither behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines: list[Machine] = []

    def start(self, name: str, *command: str) -> Machine:
        machine = Machine(name, command, folder=self.folder)
        self.machines.append(machine)
        return machine

    def narwhal(self, name: str, *words: str) -> Machine:
        return self.start(name, sys.executable, "-m", "narwhal.cli", *words)

    def close(self) -> None:
        """The latest first: a router gives its lease back to a store that is still there."""
        for machine in reversed(self.machines):
            machine.send(signal.SIGTERM)
            if machine.wait(2.0) is None:
                machine.kill()
                machine.wait(2.0)


def _die_with_parent() -> None:
    """A demo that is killed outright takes its children along (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PORTS: Final = range(22_000, 32_000)
_turns = itertools.count(random.SystemRandom().randrange(len(_PORTS)))
"""From a start of its own: two commands at once do not pick the same port, nor does one pick it twice."""


def free_port() -> int:
    """Free, and below the range of outgoing connections: a restarted process must find it free again."""
    while True:
        port = _PORTS[next(_turns) % len(_PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def start_redis(site: Site, server: str) -> int:
    """An empty server with an append-only file; its port."""
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(site.folder)]
    machine = site.start("redis", server, *options, "--save", "", "--appendonly", "yes")
    for _ in range(500):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return port
        except OSError:
            if not machine.running:
                break
            await asyncio.sleep(0.02)
    raise machine.failed("did not start")


async def start_engines(site: Site, *, interval_s: float) -> list[str]:
    """Four simulated engines in one process; their URLs, as it prints them."""
    words = ["--engines", str(ENGINES), "--interval", str(interval_s), "--prefill", "0.02"]
    machine = site.narwhal("engines", "simulate", *words)
    for _ in range(1000):
        lines = [line.split() for line in machine.log.read_text().splitlines()]
        urls = [words[1] for words in lines if len(words) == 3 and words[1].startswith("http://")]
        if len(urls) == ENGINES:
            return urls
        if not machine.running:
            break
        await asyncio.sleep(0.02)
    raise machine.failed("did not start")


def write_fleet(path: Path, urls: Sequence[str]) -> None:
    """Half of the engines prefill, half decode. Admission is open: there are no profiles."""
    roles = ["prefill"] * (len(urls) // 2) + ["decode"] * (len(urls) - len(urls) // 2)
    document: dict[str, Any] = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "simulated",
        "engines": [
            {"iid": f"e{n}", "url": url, "role": role}
            for n, (url, role) in enumerate(zip(urls, roles, strict=True))
        ],
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "serving": {"admission": "open"},
        "engine": {"first_token_timeout_s": 20.0},
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


class Router:
    """One router of the pair, as a process that can be killed and started again under its name."""

    def __init__(self, site: Site, name: str, *, fleet: Path, redis_port: int) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._site = site
        self._words = [
            f"--router-id={name}",
            f"--fleet={fleet}",
            f"--port={self.port}",
            f"--redis-url=redis://127.0.0.1:{redis_port}",
            f"--state-path={site.folder / name / 'state.json'}",
        ]
        self.machine: Machine | None = None

    async def start(self) -> None:
        """Until it answers HTTP (as owner or standby). Raises StartFailed."""
        self.machine = machine = self._site.narwhal(self.name, "serve", *self._words)
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(1000):
                try:
                    if (await client.get(f"{self.url}/health")).status_code == 200:
                        return
                except httpx.HTTPError:
                    if not machine.running:
                        break
                await asyncio.sleep(0.02)
        raise machine.failed("did not start")

    def terminate(self) -> None:
        if self.machine is not None:
            self.machine.send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for the process that routes: the machine itself is its warden."""
        if self.machine is not None:
            os.kill(self._pid_of(self.machine), signal.SIGKILL)

    def _pid_of(self, machine: Machine) -> int:
        """As the latest life of the router said it in its log. Raises StartFailed."""
        said = _LISTENS.findall(machine.log.read_text(errors="replace"))
        if not said:
            raise machine.failed("did not say that it listens")
        return int(said[-1])
