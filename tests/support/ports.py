"""Free ports for servers of tests, which run on several workers at once."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

FIRST, LAST = 12_000, 22_000
"""Below the range of outgoing connections: between the pick and the server's start nobody else gets it."""
BUS = 10_000
"""A Redis Cluster's bus has the port so far above."""


def share(number: int, count: int) -> range:
    """The ports of worker `number` of `count`: no two workers pick the same."""
    size = (LAST - FIRST) // count
    return range(FIRST + number * size, FIRST + (number + 1) * size)


def free_port() -> int:
    """A port that was free a moment ago, and its bus port too."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = share(number, max(number + 1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))
    while True:
        port = random.SystemRandom().choice(mine)
        with socket.socket() as probe, socket.socket() as bus, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS))
            return port
