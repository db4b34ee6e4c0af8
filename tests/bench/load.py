"""Load on a contender and what came of it: every frame counted, every stream's end checked."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.contenders import Rig
from tests.bench.processes import BUILD, LOAD_CORE, cpu_s


class LostFrames(Exception):
    """A contender lost frames, requests or a stream's end: its speed means nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """Open loop: `rate` requests a second for `duration_s`, each `tokens` frames."""

    rate: float
    duration_s: float
    tokens: int
    prompt_characters: int = 512


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g} to {self.high:.4g})"


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def start(rig: Rig, load: Load) -> subprocess.Popen[bytes]:
    command = [str(BUILD / "loadgen"), "-p", str(rig.port), "-r", str(load.rate), "-d", str(load.duration_s)]
    command += ["-n", str(load.tokens), "-c", str(load.prompt_characters)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CORE})
    )


def finish(rig: Rig, load: Load, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The generator's own report. Raises LostFrames unless every stream was whole."""
    out, _ = process.communicate(timeout=load.duration_s + 120)
    report: dict[str, Any] = json.loads(out)
    whole = report["completed"] == report["started"] and report["frames"] == report["started"] * load.tokens
    if report["errors"] or report["unfinished"] or not whole:
        raise LostFrames(f"{rig.name}: {json.dumps(report)}")
    return report


def run(rig: Rig, load: Load) -> dict[str, Any]:
    return finish(rig, load, start(rig, load))


def warm(rig: Rig) -> None:
    """Connections, caches and code paths, before anything counts."""
    run(rig, Load(rate=40, duration_s=1, tokens=8))


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the contender over a window, and how much it moved in it."""

    cpu_s: float
    seconds: float
    frames: int
    report: dict[str, Any]


def cost_of_window(rig: Rig, load: Load, *, after_s: float, window_s: float) -> Cost:
    """Runs the load; counts CPU and frames in a window of it, both from outside the contender."""
    process = start(rig, load)
    time.sleep(after_s)
    began, cpu, frames = time.monotonic(), cpu_s(rig.pid), engine_frames(rig)
    time.sleep(window_s)
    cpu, frames, seconds = cpu_s(rig.pid) - cpu, engine_frames(rig) - frames, time.monotonic() - began
    return Cost(cpu, seconds, frames, finish(rig, load, process))


def cost_of_run(rig: Rig, load: Load) -> Cost:
    """CPU over a whole run; what the contender would have taken idle is not subtracted, it is small."""
    began, cpu = time.monotonic(), cpu_s(rig.pid)
    report = run(rig, load)
    return Cost(cpu_s(rig.pid) - cpu, time.monotonic() - began, report["frames"], report)


def engine_frames(rig: Rig) -> int:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{rig.engines[0]}/sim/stats", timeout=10) as answer:
        return sum(engine["frames"] for engine in json.load(answer)["engines"])


class Poller:
    """Asks one path every `every_s` over one kept-alive connection and remembers the seconds it took."""

    def __init__(self, port: int, path: str, *, every_s: float = 0.02) -> None:
        self.took: list[float] = []
        self.bad = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port, path, every_s), daemon=True)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self, port: int, path: str, every_s: float) -> None:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        while not self._stop.wait(every_s):
            began = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            self.took.append(time.perf_counter() - began)
            self.bad += answer.status != 200
        connection.close()
