"""Starts `narwhal-serve` with a timer on its main loop that writes down how late it ran.

`python -m tests.bench.lagged OUT.json [arguments of narwhal-serve]`. The figures are seconds, one per 5 ms.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import threading
from pathlib import Path

import uvloop

EVERY_S = 0.005


def watch(loop: asyncio.AbstractEventLoop, late: list[float]) -> None:
    def tick(due: float) -> None:
        now = loop.time()
        late.append(max(0.0, now - due))
        loop.call_at(now + EVERY_S, tick, now + EVERY_S)

    loop.call_soon(tick, loop.time())


def main() -> None:
    out, late = Path(sys.argv.pop(1)), list[float]()
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
