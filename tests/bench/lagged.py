"""Starts `narwhal-serve` with a timer on its main loop that writes down how late it ran.

`python -m tests.bench.lagged OUT.json [arguments of narwhal-serve]`. One row per 5 ms (environment:
`LAGGED_EVERY_S`): when (seconds of the monotonic clock, the same for all processes of the machine), how many
seconds late, and how many seconds of CPU the loop's thread used since the row before.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

import uvloop

EVERY_VARIABLE = "LAGGED_EVERY_S"
EVERY_S = float(os.environ.get(EVERY_VARIABLE, "0.005"))

Row = tuple[float, float, float]


def watch(loop: asyncio.AbstractEventLoop, rows: list[Row]) -> None:
    def tick(due: float, cpu_before: float) -> None:
        now, cpu = time.monotonic(), time.thread_time()
        rows.append((now, max(0.0, now - due), cpu - cpu_before))
        loop.call_later(EVERY_S, tick, now + EVERY_S, cpu)

    loop.call_soon(tick, time.monotonic(), 0.0)


def lateness(out: Path, began: float, ended: float) -> list[float]:
    """Seconds late, of the timers between two instants of the monotonic clock."""
    return [late for _, late, _ in _rows(out, began, ended)]


def pieces(out: Path, began: float, ended: float) -> list[float]:
    """Seconds for which the loop's own work held it up, timer by timer.

    The lesser of lateness and CPU: without the time in which others had the core, and without work that let
    the timer through. Ask for a timer that is short beside the pieces: work of a whole period counts.
    """
    return [min(late, cpu) for _, late, cpu in _rows(out, began, ended)]


def _rows(out: Path, began: float, ended: float) -> list[Row]:
    rows: list[Row] = json.loads(out.read_text())
    return [row for row in rows if began <= row[0] <= ended]


def main() -> None:
    out, rows = Path(sys.argv.pop(1)), list[Row]()
    new_loop = uvloop.new_event_loop

    def watched_loop() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        if threading.current_thread() is threading.main_thread():
            watch(loop, rows)
            # Here and not at the start: the warden's process ends too, and has no loop to tell of.
            atexit.register(lambda: out.write_text(json.dumps(rows)))
        return loop

    uvloop.new_event_loop = watched_loop
    from narwhal.cli.serve import main as serve

    serve()


if __name__ == "__main__":
    main()
