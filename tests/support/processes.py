"""Child processes of a test: output collected as it comes, waited for by what they print, ended by PID."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIVENESS_S = 90.0
"""Nothing that a test waits for takes this long unless it hangs."""


class Process:
    """One child. `lines` is what it has printed so far (stdout and stderr together)."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**_clean_environment(), **(env or {})},
        )
        self.pid = self._child.pid
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def wait_for(self, found: Callable[[Sequence[str]], bool], *, within_s: float = LIVENESS_S) -> None:
        """Wait until the printed lines satisfy `found`; fails with the output when they never do."""
        with self._news:
            done = self._news.wait_for(lambda: found(self.lines) or not self._reading, timeout=within_s)
        if not done or not found(self.lines):
            state = "still runs" if self.alive else f"ended with {self._child.returncode}"
            raise AssertionError(f"never printed what was waited for; it {state}:\n{self.output}")

    def send(self, number: int) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def ended(self, *, within_s: float = LIVENESS_S) -> int:
        """Wait for the end; the exit status (negative: the signal)."""
        status = self._child.wait(within_s)
        self._reader.join(within_s)
        if self._child.stdout is not None:
            self._child.stdout.close()
        return status

    def stop(self, *, within_s: float = LIVENESS_S) -> int:
        """SIGTERM, and SIGKILL when that does not help (also a stopped process ends by it)."""
        self.send(signal.SIGTERM)
        try:
            return self.ended(within_s=within_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            return self.ended(within_s=within_s)

    def kill(self) -> int:
        """SIGKILL: nothing of the process gets to run any more."""
        self.send(signal.SIGKILL)
        return self.ended()

    @property
    def _reading(self) -> bool:
        return self._reader.is_alive()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def eventually(holds: Callable[[], bool], *, within_s: float = LIVENESS_S, what: str = "condition") -> None:
    """Poll until it holds; fails when it never does."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within_s:g} s")
        time.sleep(0.01)


def _clean_environment() -> dict[str, str]:
    """Ours without what would configure a router behind the test's back."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("NARWHAL_")}
    own["PYTHONPATH"] = str(ROOT)
    own["PYTHONUNBUFFERED"] = "1"
    return own
