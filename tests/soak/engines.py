"""Simulated engines that write down every request they were sent: `... --count N --record FILE`.

One JSON line each: `at` (Unix seconds), `iid`, `leg`, `epoch` (of the router that sent it, 0: none), `rid`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

import uvloop

from narwhal.sim.http import Request
from narwhal.sim.rack import Rack
from narwhal.sim.settings import SimSettings
from narwhal.sim.stats import Stats

KV_LEASE_S = 8.0


class Recording(Stats):
    """Stats that also write one line a request."""

    def __init__(self, iid: str, file: TextIO) -> None:
        super().__init__(0)
        self._iid = iid
        self._file = file

    def saw(self, leg: str, request: Request, *, at: float) -> None:
        super().saw(leg, request, at=at)
        epoch = request.headers.get("x-narwhal-epoch", "").rpartition("/")[2] or "0"
        row = {"at": time.time(), "iid": self._iid, "leg": leg, "epoch": int(epoch)}
        self._file.write(json.dumps({**row, "rid": request.headers.get("x-request-id", "")}) + "\n")


async def run(count: int, file: TextIO) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    rack = Rack()
    for index in range(count):
        settings = SimSettings(name=f"e{index}", prefill_s=0.01, interval_s=0.01, kv_lease_s=KV_LEASE_S)
        stand = rack.add(settings)
        stand.engine.stats = Recording(settings.name, file)
        print(f"{settings.name} {stand.url} {stand.side_url}", flush=True)
    await stop.wait()
    rack.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    with options.record.open("w", buffering=1, encoding="utf-8") as file:
        uvloop.run(run(options.count, file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
