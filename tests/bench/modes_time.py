"""Time modes: to the first frame, of the event loop and /ready under load, to the first /ready."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.contenders import Pace, engines, fleet, narwhal, rig
from tests.bench.lagged import EVERY_VARIABLE, lateness, pieces
from tests.bench.load import Load, Poller, Spread, finish, quantile, start, warm
from tests.bench.plain_relay import REMOTE_DECODE
from tests.bench.processes import LOAD_CORE, ROOT, ROUTER_CORE, cpu_s, free_ports, running, wait_http
from tests.bench.results import Figure, Section, Verdict

SAMPLES = 100
BUSY_SHARE = 0.7
"""Of one core, for the busy mode."""
BUSY_WITHIN = 0.06
BUSY_TRIES = 4
"""Windows for each one that is to count."""


class Caller:
    """A client as thin as Python allows: one kept-alive socket, raw bytes."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def until(self, mark: bytes, got: bytes = b"") -> bytes:
        """Reads until `mark` is there; returns everything read."""
        while mark not in got:
            more = self._socket.recv(65536)
            if not more:
                raise RuntimeError(f"connection closed after {got[-200:]!r}")
            got += more
        return got

    def document(self) -> dict[str, object]:
        head, _, rest = self.until(b"\r\n\r\n").partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(rest) < length:
            rest += self._socket.recv(65536)
        document: dict[str, object] = json.loads(rest)
        return document

    def close(self) -> None:
        self._socket.close()


def first_frame_s(body: dict[str, object], prefill: Caller | None, caller: Caller) -> float:
    """Seconds to the first event: through a router, or of both legs by hand when `prefill` is given."""
    began = time.perf_counter()
    if prefill is not None:
        prefill.post({**body, "stream": False, "max_tokens": 1, "kv_transfer_params": REMOTE_DECODE})
        body = {**body, "kv_transfer_params": prefill.document()["kv_transfer_params"]}
    caller.post(body)
    got = caller.until(b"data: ")
    took = time.perf_counter() - began
    caller.until(b"data: [DONE]\n\n\r\n0\r\n\r\n" if b"200 OK" in got else b"\r\n", got)
    return took


def first_frame(rounds: int, peers: bool) -> Section:
    """5 requests a second, through the router and by hand in turn; what the router adds."""
    ours = narwhal(tokenize=False)
    added: dict[float, list[float]] = {0.5: [], 0.99: []}
    for _ in range(rounds):
        with rig(ours, Pace()) as up:
            warm(up)
            routed, prefill, decode = Caller(up.port), Caller(up.engines[0]), Caller(up.engines[-1])
            through, direct = [], []
            due = time.monotonic()
            for n in range(SAMPLES):
                body: dict[str, object] = {"model": "simulated", "max_tokens": 3, "stream": True}
                body["prompt"] = f"{n} " + "word " * 100
                through.append(first_frame_s(body, None, routed))
                direct.append(first_frame_s(body, prefill, decode))
                due += 0.2
                time.sleep(max(0.0, due - time.monotonic()))
            for one in (routed, prefill, decode):
                one.close()
        for share, values in added.items():
            values.append((quantile(through, share) - quantile(direct, share)) * 1e3)
    p50, p99 = Spread.of(added[0.5]), Spread.of(added[0.99])
    figures = [
        Figure("added time to first frame, p50", ours.name, "ms", p50),
        Figure("added time to first frame, p99", ours.name, "ms", p99),
    ]
    verdicts = [
        Verdict("added time to first frame, p50", p50.median, 2.5, 1.2, "ms"),
        Verdict("added time to first frame, p99", p99.median, 6.0, 3.0, "ms"),
    ]
    return Section("first-frame", figures, verdicts)


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """One window of load: the share of a core it took, seconds late of timers, seconds of /ready."""

    share: float
    late: Sequence[float]
    ready: Sequence[float]


def under_load(rate: float) -> UnderLoad:
    """A router of its own at `rate` requests a second of 128 tokens, watched for 7 s once all streams run."""
    with tempfile.TemporaryDirectory(prefix="narwhal-bench-") as name:
        out = Path(name) / "lag.json"
        ours = narwhal(tokenize=False, launcher=("-m", "tests.bench.lagged", str(out)))
        with rig(ours, Pace()) as up:
            warm(up)
            load = Load(rate=rate, duration_s=12, tokens=128)
            process = start(up, load)
            time.sleep(4)
            cpu, began = cpu_s(up.pid), time.monotonic()
            with Poller(up.port, "/ready") as poller:
                time.sleep(7)
            cpu, ended = cpu_s(up.pid) - cpu, time.monotonic()
            finish(up, load, process)
        if poller.bad:
            raise RuntimeError(f"/ready was not 200 {poller.bad} times under load")
        return UnderLoad(cpu / (ended - began), lateness(out, began, ended), poller.took)


def busy(rounds: int, peers: bool) -> Section:
    """The router at 70% of one core: how late its loop runs a timer, how long /ready takes.

    The rate that takes 70% is another on each machine and at each load (many frames in one wake-up are
    cheaper): it is approached, and a window counts only within `BUSY_WITHIN` of the share.
    """
    taken: list[UnderLoad] = []
    rate = 100.0
    for _ in range(BUSY_TRIES * rounds):
        one = under_load(rate)
        rate *= min(2.0, BUSY_SHARE / one.share)
        if abs(one.share - BUSY_SHARE) <= BUSY_WITHIN:
            taken.append(one)
        if len(taken) == rounds:
            break
    if not taken:
        raise RuntimeError(f"no window within {BUSY_WITHIN} of {BUSY_SHARE} of a core; the last: {one.share}")
    lag = Spread.of([quantile(one.late, 0.99) * 1e3 for one in taken])
    ready = Spread.of([quantile(one.ready, 0.99) * 1e3 for one in taken])
    figures = [
        Figure("share of one core", "narwhal", "", Spread.of([one.share for one in taken])),
        Figure("event-loop lag, p99", "narwhal", "ms", lag),
        Figure("event-loop lag, longest", "narwhal", "ms", Spread.of([max(one.late) * 1e3 for one in taken])),
        Figure("/ready, p99", "narwhal", "ms", ready),
    ]
    verdicts = [
        Verdict("event-loop lag at 70% of one core, p99", lag.median, 20, 5, "ms"),
        Verdict("/ready under that load, p99", ready.median, 50, 10, "ms"),
    ]
    return Section("busy", figures, verdicts)


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    port = free_ports(1)
    server = shutil.which("redis-server") or "redis-server"
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with running(command, core=LOAD_CORE, log=folder / "redis.log") as process:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield port


def start_up(rounds: int, peers: bool) -> Section:
    """Store up, lease released by a clean end: from the start of the process to the first /ready 200."""
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="narwhal-bench-") as name:
        folder = Path(name)
        with engines(Pace(), folder) as ports, redis(folder) as store:
            (folder / "fleet.json").write_text(json.dumps(fleet(ports, tokenize=False)))
            for _ in range(max(rounds, 3) + 1):
                port = free_ports(1)
                command = [sys.executable, "-m", "narwhal.cli.serve", f"--fleet={folder / 'fleet.json'}"]
                command += [f"--port={port}", f"--state-path={folder / 'state.json'}", "--router-id=bench"]
                command += [f"--redis-url=redis://127.0.0.1:{store}"]
                began = time.monotonic()
                env = {"PYTHONPATH": str(ROOT)}
                with running(command, core=ROUTER_CORE, log=folder / "router.log", env=env) as process:
                    wait_http(f"http://127.0.0.1:{port}/ready", process)
                    took.append(time.monotonic() - began)
    spread = Spread.of(took[1:])
    figures = [Figure("start to first /ready 200", "narwhal", "s", spread)]
    notes = [f"on the empty store the first start took {took[0]:.2f} s (it must watch the lease for T = 5 s)"]
    verdicts = [Verdict("start to first /ready 200", spread.median, 1.5, 0.7, "s")]
    return Section("start", figures, verdicts, notes)


def monitor_pass(rounds: int, peers: bool) -> Section:
    """An idle owner of 200 engines on a store: CPU a second with a pass each second, less that without."""
    passes: list[float] = []
    idle: list[float] = []
    longest: list[float] = []
    for _ in range(rounds):
        with_pass, _ = idle_owner(["-m", "narwhal.cli.serve"], interval_s=1.0)
        without, _ = idle_owner(["-m", "narwhal.cli.serve"], interval_s=600.0)
        passes.append(with_pass - without)
        idle.append(with_pass)
        longest.append(idle_owner(["-m", "tests.bench.lagged"], interval_s=1.0)[1])
    cost, piece = Spread.of(passes), Spread.of(longest)
    figures = [
        Figure("CPU of one pass, 200 engines", "narwhal", "ms", cost),
        Figure("CPU a second, idle owner of 200 engines, all in all", "narwhal", "ms", Spread.of(idle)),
        Figure("longest piece of work on the loop in 10 s", "narwhal", "ms", piece),
    ]
    verdicts = [
        Verdict("one monitor pass with 200 engines", cost.median, 20, 5, "ms"),
        Verdict("longest piece of it", piece.median, 5, 5, "ms"),
    ]
    return Section("monitor", figures, verdicts)


def idle_owner(launcher: list[str], *, interval_s: float, seconds: int = 10) -> tuple[float, float]:
    """Milliseconds of CPU a second, and the longest piece of work on the loop if the launcher measures it."""
    with tempfile.TemporaryDirectory(prefix="narwhal-bench-") as name:
        folder = Path(name)
        out, path, port = folder / "lag.json", folder / "fleet.json", free_ports(1)
        with engines(Pace(), folder, prefill=100, decode=100) as ports, redis(folder) as store:
            document = fleet(ports, tokenize=False, prefill=100)
            path.write_text(json.dumps(document | {"controller": {"monitor_interval_s": interval_s}}))
            command = [sys.executable, *launcher, *([str(out)] if launcher[-1].endswith("lagged") else [])]
            command += [f"--port={port}", f"--fleet={path}", f"--state-path={folder / 'state.json'}"]
            command += [f"--redis-url=redis://127.0.0.1:{store}"]
            env = {"PYTHONPATH": str(ROOT), EVERY_VARIABLE: "0.001"}
            with running(command, core=ROUTER_CORE, log=folder / "router.log", env=env) as process:
                wait_http(f"http://127.0.0.1:{port}/ready", process)
                time.sleep(2)
                cpu, began = cpu_s(process.pid), time.monotonic()
                time.sleep(seconds)
                cpu, ended = cpu_s(process.pid) - cpu, time.monotonic()
        longest_s = max(pieces(out, began, ended)) if out.exists() else 0.0
    return cpu / seconds * 1e3, longest_s * 1e3
