"""The processes of a soak: engines that write down what they are sent, a store, two routers to be killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.soak.engines import KV_LEASE_S
from tests.support.engines import EngineProcess, RemoteEngine
from tests.support.processes import Process, eventually, python
from tests.support.redis import RedisServer, free_port, on, running
from tests.support.router import Router
from tests.support.store_drill import hand_over

ENGINES = 8
CLUSTER = "soak"
START_S = 60.0
SETTLE_S = 90.0


LIMIT_S = 3.0
"""Of every leg and every look at an engine."""
PASS_S = 0.5
WINDOW_S = 3.0


class Seat:
    """One router under one name, port and state path; each life is a warden and its child."""

    def __init__(self, name: str, folder: Path, *, words: Sequence[str]) -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True)
        state = ("--state-path", str(folder / "state.json"), "--port", str(self.port))
        self._words = python("tests.support.counted_router", *words, "--router-id", name, *state)
        self._process: Process | None = None
        self.output: list[str] = []

    @property
    def router(self) -> Router:
        assert self._process is not None
        return Router(self._process, self.url, self.folder)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Until it answers."""
        process = self._process = Process(self._words)

        def answers() -> bool:
            assert process.alive, process.output
            with suppress(OSError):
                return bool(self.router.get("/ready")) and self._told_its_pid()
            return False

        eventually(answers, within_s=START_S, what=f"router {self.name} answers")

    def _told_its_pid(self) -> bool:
        return any("(pid " in line for line in self.router.process.lines)

    def revive(self) -> None:
        """Starts it again if it has ended."""
        if not self.alive:
            self.stop()
            self.start()

    def signal(self, number: signal.Signals, *, warden: bool = False) -> None:
        """To the process that routes, or to its warden."""
        with suppress(ProcessLookupError):
            os.kill(self.router.process.pid if warden else self.router.pid, number)

    def wait_for_its_end(self, within_s: float) -> bool:
        """Whether it ended by itself in that time."""
        deadline = time.monotonic() + within_s
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.alive

    def stop(self) -> None:
        if self._process is not None:
            with suppress(AssertionError, ValueError, ProcessLookupError):
                os.kill(self.router.pid, signal.SIGCONT)
            self._process.stop(within_s=60.0)
            self._keep_output()

    def _keep_output(self) -> None:
        if self._process is not None:
            self.output.extend(self._process.lines)

    def document(self, path: str) -> dict[str, Any] | None:
        """None while it does not answer."""
        with suppress(OSError, ValueError):
            found = self.router.get(path)
            return found if isinstance(found, dict) else None
        return None

    def descriptors(self) -> int:
        return int(psutil.Process(self.router.pid).num_fds())

    def memory_bytes(self) -> int:
        return int(psutil.Process(self.router.pid).memory_info().rss)

    def tasks(self) -> int:
        """Unfinished asyncio tasks of the process that routes."""
        process = self.router.process
        said = len(process.lines)
        self.signal(signal.SIGUSR1)
        process.wait_for(lambda lines: any(line.startswith("tasks ") for line in lines[said:]))
        return int(next(line for line in process.lines[said:] if line.startswith("tasks ")).split()[1])


@dataclass(frozen=True, slots=True)
class Cluster:
    engines: Sequence[RemoteEngine]
    record: Path
    store: RedisServer
    seats: Sequence[Seat]

    def owner(self) -> Seat | None:
        """The router that is in control now, whether engines are there or not."""
        for seat in self.seats:
            ready = seat.document("/ready")
            if ready is not None and ready["control_ready"]:
                return seat
        return None

    def settled(self) -> bool:
        """One controls, the other is ready to take."""
        told = [seat.document("/ready") for seat in self.seats]
        if any(one is None for one in told):
            return False
        controls = sum(bool(one and one["control_ready"]) for one in told)
        takes = sum(bool(one and one.get("ready_to_take")) for one in told)
        return (controls, takes) == (1, len(self.seats) - 1)

    def settle(self) -> None:
        for seat in self.seats:
            seat.revive()
        eventually(self.settled, within_s=SETTLE_S, what="an owner and a ready standby")

    def totals(self) -> dict[str, dict[str, int]]:
        """Router run to its counters, as the store has them."""
        with self.store.client() as client:
            rows = client.hgetall(f"narwhal:{{{CLUSTER}}}:totals")
        return {run: json.loads(text) for run, text in rows.items()}

    def take_over(self, way: str) -> None:
        """Ends or moves the ownership in one way, and waits until the pair is whole again."""
        owner = self.owner()
        if owner is not None:
            _WAYS[way](owner)
        self.settle()


def _killed(owner: Seat) -> None:
    owner.signal(signal.SIGKILL)
    owner.wait_for_its_end(20.0)


def _host_lost(owner: Seat) -> None:
    routes = owner.router.pid
    owner.signal(signal.SIGKILL, warden=True)
    with suppress(ProcessLookupError):
        os.kill(routes, signal.SIGKILL)
    owner.wait_for_its_end(20.0)


def _frozen(owner: Seat) -> None:
    """Its warden kills it when a standby is ready; without one it goes on, superseded or not."""
    owner.signal(signal.SIGSTOP)
    if not owner.wait_for_its_end(8.0):
        owner.signal(signal.SIGCONT)


def _stalled(owner: Seat) -> None:
    """Its loop does not run for 1.4 s: nothing may come of it."""
    owner.signal(signal.SIGSTOP)
    time.sleep(1.4)
    owner.signal(signal.SIGCONT)


def _yielded(owner: Seat) -> None:
    with suppress(OSError):
        hand_over(owner.router)


def _terminated(owner: Seat) -> None:
    owner.signal(signal.SIGTERM, warden=True)
    owner.wait_for_its_end(60.0)


_WAYS = {
    "killed": _killed,
    "host lost": _host_lost,
    "frozen": _frozen,
    "stalled 1.4 s": _stalled,
    "yielded": _yielded,
    "terminated": _terminated,
}
WAYS = tuple(_WAYS)


def fleet_document(engines: Sequence[RemoteEngine], dice: random.Random) -> dict[str, Any]:
    """Four prefill, four decode; the first two of each are pinned. The dice choose what may be on or off."""
    rows = [
        {
            "iid": engine.name,
            "url": engine.url,
            "role": "prefill" if index < len(engines) // 2 else "decode",
            "pin": index % 4 < 2,
        }
        for index, engine in enumerate(engines)
    ]
    sections: Mapping[str, Mapping[str, Any]] = {
        "controller": {"monitor_interval_s": PASS_S},
        "recovery": {
            "readmit_every": 4,
            "liveness_every": 4,
            "failure_quarantine_s": dice.choice((0.0, 0.0, 1.0)),
            "health": {
                "window_s": WINDOW_S,
                "probation_windows": 2,
                "evict_windows": 3,
                "recovery_windows": 2,
            },
        },
        "serving": {
            "admission": "open",
            "max_connections": 64,
            "queue_capacity": dice.choice((0, 16)),
            "queue_timeout_s": 2.0,
            "request_timeout_s": 20.0,
            "prefill_timeout_s": LIMIT_S,
            "handoff_timeout_s": KV_LEASE_S * 5 / 6,
            "max_attempts": dice.choice((1, 2, 3)),
            "graceful_timeout_s": 5.0,
        },
        "engine": {
            "connect_timeout_s": LIMIT_S,
            "health_timeout_s": LIMIT_S,
            "first_token_timeout_s": LIMIT_S,
            "decode_read_timeout_s": LIMIT_S,
            "tokenize_timeout_s": 1.0,
        },
    }
    head = {"schema": "narwhal.fleet", "schema_version": 1, "model": "simulated"}
    return {**head, "engines": rows, "slo": {"ttft_s": 2.0, "tpot_s": 0.5}, **sections}


@contextmanager
def cluster(folder: Path, dice: random.Random) -> Iterator[Cluster]:
    """Everything up, one owner, one ready standby; ended by PID at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(running(on("redis-server"), folder / "store"))
        record = folder / "requests.jsonl"
        words = ("--count", str(ENGINES), "--record", str(record))
        process = Process(python("tests.soak.engines", *words))
        stack.callback(process.stop)
        process.wait_for(lambda lines: len(lines) >= ENGINES)
        served = EngineProcess(process, [RemoteEngine(*line.split()) for line in process.lines[:ENGINES]])
        path = folder / "fleet.json"
        path.write_text(json.dumps(fleet_document(served.engines, dice), indent=2), encoding="utf-8")
        url = f"redis://127.0.0.1:{store.port}"
        common = ("--fleet", str(path), "--redis-url", url, "--cluster", CLUSTER)
        seats = [Seat(name, folder / name, words=common) for name in "ab"]
        for seat in seats:
            stack.callback(seat.stop)
            seat.start()
        made = Cluster(served.engines, record, store, seats)
        made.settle()
        yield made
