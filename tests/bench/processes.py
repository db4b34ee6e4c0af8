"""Processes of a benchmark run: built, pinned, watched, ended."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
PROGRAMS = ("sim_engine", "loadgen", "relay")

CORES = sorted(os.sched_getaffinity(0))
ROUTER_CORE = CORES[0]
"""The contender runs here alone; engines and load generator share the last core."""
LOAD_CORE = CORES[-1]


def build() -> None:
    """Compiles the C programs with the system's compiler, each once per change."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        source, target = Path(__file__).parent / "c" / f"{name}.c", BUILD / name
        if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["cc", "-O2", "-o", str(target), str(source), "-lm"], check=True)


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports on the loopback address."""
    while True:
        base = random.randrange(20_000, 32_000 - count)
        if all(is_free(base + i) for i in range(count)):
            return base


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def running(
    command: Sequence[str], *, core: int, log: Path, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A pinned process, terminated (then killed) at the end; its output goes to `log`.

    It may keep its bytecode, as an installed package does: compiling is no part of a start.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(env or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_http(url: str, process: subprocess.Popen[bytes], *, timeout_s: float = 30.0) -> None:
    """Until `url` answers 200."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with status {process.returncode} before {url} answered")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.01)
    raise RuntimeError(f"{url} did not answer within {timeout_s} s")


def family(pid: int) -> list[int]:
    parent = psutil.Process(pid)
    return [pid, *(child.pid for child in parent.children(recursive=True))]


def cpu_s(pid: int) -> float:
    """Seconds on a CPU (user and system) of every thread of a process tree, to the nanosecond."""
    total = 0
    for member in family(pid):
        for task in Path(f"/proc/{member}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_bytes(pid: int) -> int:
    """Resident memory of a process tree."""
    return sum(psutil.Process(member).memory_info().rss for member in family(pid))
