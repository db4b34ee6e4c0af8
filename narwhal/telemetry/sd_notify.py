"""The service manager's readiness protocol: one datagram to `NOTIFY_SOCKET` (sd_notify(3))."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

log = logging.getLogger("narwhal.sd_notify")


def notify(state: str, env: Mapping[str, str]) -> bool:
    """Sends `state`; False when no service manager asked for it or it cannot be told (then a warning)."""
    address = env.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), target)
    except OSError as error:
        log.warning("service manager cannot be told %s: %s", state, error)
        return False
    return True
