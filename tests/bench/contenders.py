"""Who is measured: each knows how to start itself in front of a set of simulated engines."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.processes import BUILD, LOAD_CORE, ROOT, ROUTER_CORE, free_ports, running, wait_http

PREFILL_ENGINES = 2
DECODE_ENGINES = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """How the simulated engines behave, in seconds."""

    interval_s: float = 0.02
    prefill_s: float = 0.005
    first_s: float = 0.005


@dataclass(frozen=True, slots=True)
class Rig:
    """A contender up and running. `engines`: ports, prefill engines first."""

    name: str
    pid: int
    port: int
    engines: tuple[int, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class Contender:
    """`command(port, engines, folder)`: what to run; `ready`: the path that answers 200 when it serves."""

    name: str
    command: Callable[[int, Sequence[int], Path], list[str]]
    ready: str = "/health"
    env: dict[str, str] = field(default_factory=dict)


@contextmanager
def engines(
    pace: Pace, folder: Path, *, prefill: int = PREFILL_ENGINES, decode: int = DECODE_ENGINES
) -> Iterator[tuple[int, ...]]:
    """Their ports, prefill engines first; one process has all (at most 256)."""
    count = prefill + decode
    base = free_ports(count)
    command = [str(BUILD / "sim_engine"), str(base), str(count), str(prefill)]
    command += [str(pace.interval_s), str(pace.prefill_s), str(pace.first_s)]
    with running(command, core=LOAD_CORE, log=folder / "engines.log") as process:
        wait_http(f"http://127.0.0.1:{base}/health", process)
        yield tuple(range(base, base + count))


@contextmanager
def rig(contender: Contender, pace: Pace) -> Iterator[Rig]:
    """Engines and one contender in front of them, ready to serve."""
    with tempfile.TemporaryDirectory(prefix="narwhal-bench-") as name:
        folder = Path(name)
        with engines(pace, folder) as ports:
            port = free_ports(1)
            command = contender.command(port, ports, folder)
            log = folder / "contender.log"
            with running(command, core=ROUTER_CORE, log=log, env=contender.env) as process:
                try:
                    wait_http(f"http://127.0.0.1:{port}{contender.ready}", process)
                except RuntimeError as error:
                    raise RuntimeError(f"{contender.name}: {error}\n{log.read_text()[-2000:]}") from error
                yield Rig(contender.name, process.pid, port, ports, folder)


# --- ours ------------------------------------------------------------------------------------------


def fleet(ports: Sequence[int], *, tokenize: bool, prefill: int = PREFILL_ENGINES) -> dict[str, Any]:
    engines = [
        {
            "iid": f"e{n}",
            "url": f"http://127.0.0.1:{port}",
            "role": "prefill" if n < prefill else "decode",
            "pin": True,
        }
        for n, port in enumerate(ports)
    ]
    return {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "simulated",
        "engines": engines,
        "slo": {"ttft_s": 2.0, "tpot_s": 0.5},
        "serving": {"admission": "open", "max_connections": 4096},
        "engine": {"tokenize": tokenize},
    }


def narwhal(*, tokenize: bool, launcher: Sequence[str] = ("-m", "narwhal.cli.serve")) -> Contender:
    """Narwhal under local control. `launcher`: arguments of the interpreter that start it."""

    def command(port: int, ports: Sequence[int], folder: Path) -> list[str]:
        path = folder / "fleet.json"
        path.write_text(json.dumps(fleet(ports, tokenize=tokenize)))
        state = folder / "state.json"
        return [sys.executable, *launcher, f"--fleet={path}", f"--port={port}", f"--state-path={state}"]

    name = "narwhal" if tokenize else "narwhal, no tokenize"
    return Contender(name, command, ready="/ready", env={"PYTHONPATH": str(ROOT)})


# --- the yardsticks --------------------------------------------------------------------------------


def byte_relay() -> Contender:
    """The floor of the machine: bytes by epoll in C, one leg, no HTTP."""

    def command(port: int, ports: Sequence[int], folder: Path) -> list[str]:
        return [str(BUILD / "relay"), str(port), *(str(one) for one in ports[PREFILL_ENGINES:])]

    return Contender("C byte relay, one leg", command)


def of_module(name: str, module: str) -> Contender:
    def command(port: int, ports: Sequence[int], folder: Path) -> list[str]:
        legs = [",".join(map(str, ports[:PREFILL_ENGINES])), ",".join(map(str, ports[PREFILL_ENGINES:]))]
        return [sys.executable, "-m", module, str(port), *legs]

    return Contender(name, command, env={"PYTHONPATH": str(ROOT)})


def httpx_relay() -> Contender:
    return of_module("plain httpx relay", "tests.bench.plain_relay")


def bare_relay() -> Contender:
    """Our own data plane with nothing around it: what is left to win or lose in the rest."""
    return of_module("narwhal's bare relay", "tests.bench.bare_router")


# --- peers -----------------------------------------------------------------------------------------

PEER_PACKAGES = {"vllm-router": "vllm-router", "smg": "smg"}


def peer_bin(name: str) -> Path:
    """A virtual environment of its own per peer, made once under build/."""
    home = ROOT / "build" / "peers" / name
    if not (home / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, PEER_PACKAGES[name]], check=True)
        (home / ".ready").touch()
    return home / "bin"


def legs_of(ports: Sequence[int]) -> Iterator[tuple[str, str]]:
    for n, port in enumerate(ports):
        yield "--prefill" if n < PREFILL_ENGINES else "--decode", f"http://127.0.0.1:{port}"


def vllm_router() -> Contender:
    def command(port: int, ports: Sequence[int], folder: Path) -> list[str]:
        legs = [word for leg in legs_of(ports) for word in leg]
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--policy",
            "round_robin",
            "--log-level",
            "error",
        ]
        metrics = ["--prometheus-port", str(free_ports(1))]
        return [
            str(peer_bin("vllm-router") / "vllm-router"),
            "--vllm-pd-disaggregation",
            *options,
            *metrics,
            *legs,
        ]

    return Contender("vllm-router", command)


def smg() -> Contender:
    def command(port: int, ports: Sequence[int], folder: Path) -> list[str]:
        legs = [word for leg in legs_of(ports) for word in leg]
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--policy",
            "round_robin",
            "--log-level",
            "error",
        ]
        metrics = ["--prometheus-port", str(free_ports(1))]
        return [str(peer_bin("smg") / "smg"), "launch", "--pd-disaggregation", *options, *metrics, *legs]

    return Contender("smg", command, ready="/readiness")
