"""Routers as real processes, in front of engines of `tests.support.engines`."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.engines import RemoteEngine, call
from tests.support.ports import free_port
from tests.support.processes import LIVENESS_S, Process, eventually, python

LISTENS = re.compile(r" listens on .*\(pid (\d+)\)")
"""What a router says once, at its start."""
IN_FLIGHT = ("inflight", "queued")
FORGIVING = {"eject_after": 1_000_000}
"""`recovery` of a fleet that throws nobody out: for tests that order one fault after the other."""


def fleet_document(engines: Sequence[RemoteEngine], **sections: Mapping[str, Any]) -> dict[str, Any]:
    """A fleet file: the first half prefills, the rest decodes, admission open, engines that a loaded machine
    makes slow are waited for; `sections` change it."""
    half = max(1, len(engines) // 2)
    rows = [
        {"iid": engine.name, "url": engine.url, "role": "prefill" if index < half else "decode"}
        for index, engine in enumerate(engines)
    ]
    return {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "simulated",
        "engines": rows,
        "slo": {"ttft_s": 2.0, "tpot_s": 0.2},
        **sections,
        "serving": {"admission": "open", **sections.get("serving", {})},
        "engine": {"first_token_timeout_s": 30.0, **sections.get("engine", {})},
    }


@dataclass(frozen=True, slots=True)
class Router:
    """One router process."""

    process: Process
    url: str
    folder: Path

    def get(self, path: str) -> Any:
        """A JSON document of the router, whatever its status."""
        try:
            return call("GET", f"{self.url}{path}")
        except urllib.error.HTTPError as error:
            return json.loads(error.read())

    @property
    def pid(self) -> int:
        """Of the process that routes. With a store that is a child: `process` is its warden then."""
        self.process.wait_for(lambda lines: any(map(LISTENS.search, lines)))
        (said,) = (match for line in self.process.lines if (match := LISTENS.search(line)))
        return int(said[1])

    def ready(self) -> bool:
        try:
            return bool(self.get("/ready")["status"] == "ready")
        except OSError:
            return False

    def state(self) -> dict[str, Any]:
        state = self.get("/narwhal/state")
        assert isinstance(state, dict)
        return state

    def idle(self) -> bool:
        """Whether nothing is in flight, queued or resident on any engine."""
        state = self.state()
        resident = [count for legs in state["resident"].values() for count in legs.values()]
        return not any(state["admission"][name] for name in IN_FLIGHT) and not any(resident)

    def becomes_idle(self, *, within_s: float = LIVENESS_S) -> None:
        eventually(self.idle, within_s=within_s, what=f"{self.url} idle")

    def memory_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def descriptors(self) -> int:
        return int(psutil.Process(self.pid).num_fds())

    def tasks(self) -> int:
        """Unfinished asyncio tasks; the router was started by `tests.support.counted_router`."""
        said = len(self.process.lines)
        self.process.send(signal.SIGUSR1)
        self.process.wait_for(lambda lines: any(line.startswith("tasks ") for line in lines[said:]))
        (count,) = [line.split()[1] for line in self.process.lines[said:] if line.startswith("tasks ")]
        return int(count)

    def journalled(self, rid: str) -> dict[str, Any]:
        """The journal row of one request, by the `x-request-id` that its client saw."""
        rows: list[dict[str, Any]] = []

        def written() -> bool:
            rows[:] = [row for row in self.journal() if row.get("rid") == rid]
            return bool(rows)

        eventually(written, what=f"journal row of {rid}")
        return rows[0]

    def journal(self) -> list[dict[str, Any]]:
        """The rows of its journal, the header row first; a row that is just being written is none yet."""
        text = (self.folder / "journal.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextmanager
def router_process(
    folder: Path,
    fleet: Mapping[str, Any],
    *options: str,
    module: str = "narwhal.cli.serve",
    env: Mapping[str, str] | None = None,
    ready: bool = True,
) -> Iterator[Router]:
    """`narwhal-serve` on a free port, ready when it is handed out (a standby, or one without `ready`: it
    answers)."""
    folder.mkdir(parents=True, exist_ok=True)
    path, port = folder / "fleet.json", free_port()
    path.write_text(json.dumps(fleet), encoding="utf-8")
    command = python(module, "--fleet", str(path), "--port", str(port))
    process = Process([*command, "--state-path", str(folder / "state.json"), *options], env=env)
    router = Router(process, f"http://127.0.0.1:{port}", folder)
    try:
        wait_until_ready(router, or_standby="--standby" in options, or_not=not ready)
        yield router
    finally:
        process.stop()


def wait_until_ready(router: Router, *, or_standby: bool = False, or_not: bool = False) -> None:
    """`or_not`: an answer will do."""

    def answers() -> bool:
        assert router.process.alive, router.process.output
        try:
            if or_not:
                return bool(router.get("/ready"))
            return router.ready() or (or_standby and router.get("/ready")["role"] == "standby")
        except OSError:
            return False

    eventually(answers, what=f"router at {router.url}")
