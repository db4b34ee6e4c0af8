"""Starts `narwhal-serve` with a timer on its main loop that writes down how late it ran.

`python -m tests.bench.lagged OUT.json [arguments of narwhal-serve]`. One pair per 5 ms: when (seconds of the
monotonic clock, the same for all processes of the machine), and how many seconds late.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import threading
import time
from pathlib import Path

import uvloop

EVERY_S = 0.005

Lateness = tuple[float, float]


def watch(loop: asyncio.AbstractEventLoop, late: list[Lateness]) -> None:
    def tick(due: float) -> None:
        now = time.monotonic()
        late.append((now, max(0.0, now - due)))
        loop.call_later(EVERY_S, tick, now + EVERY_S)

    loop.call_soon(tick, time.monotonic())


def lateness(out: Path, began: float, ended: float) -> list[float]:
    """Seconds late, of the timers between two instants of the monotonic clock."""
    pairs: list[Lateness] = json.loads(out.read_text())
    return [late for at, late in pairs if began <= at <= ended]


def main() -> None:
    out, late = Path(sys.argv.pop(1)), list[Lateness]()
    new_loop = uvloop.new_event_loop

    def watched_loop() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        if threading.current_thread() is threading.main_thread():
            watch(loop, late)
            # Here and not at the start: the warden's process ends too, and has no loop to tell of.
            atexit.register(lambda: out.write_text(json.dumps(late)))
        return loop

    uvloop.new_event_loop = watched_loop
    from narwhal.cli.serve import main as serve

    serve()


if __name__ == "__main__":
    main()
