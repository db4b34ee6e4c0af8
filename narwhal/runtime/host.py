"""Which process on which host this is: what a lease record tells, so that a death can be proved later."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from narwhal import __version__
from narwhal.model.lease import OwnerMeta
from narwhal.model.settings import ServeOptions

_START_TIME_FIELD = 22
"""`starttime` of /proc/<pid>/stat (proc(5)), in clock ticks after boot."""


def owner_meta(options: ServeOptions) -> OwnerMeta:
    """What this router writes about itself. Facts that the system does not tell are ""."""
    pid = os.getpid()
    return OwnerMeta(
        router_id=options.router_id,
        url=options.advertise_url,
        control_url=options.advertise_url,
        host=socket.gethostname(),
        machine_id=_first_line("/etc/machine-id"),
        boot_id=boot_id(),
        pidns=_link("/proc/self/ns/pid"),
        pid=pid,
        pid_start=_start_time(pid),
        version=__version__,
    )


def boot_id() -> str:
    """The kernel's ID of the present boot, "" where there is none."""
    return _first_line("/proc/sys/kernel/random/boot_id")


def _start_time(pid: int) -> str:
    text = _first_line(f"/proc/{pid}/stat")
    # The command name is in parentheses and may hold anything, also spaces.
    fields = text.rpartition(")")[2].split()
    return fields[_START_TIME_FIELD - 3] if len(fields) > _START_TIME_FIELD - 3 else ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
