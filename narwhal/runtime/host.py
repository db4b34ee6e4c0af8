"""Which process on which host this is: what a lease record tells, so that a death can be proved later."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from narwhal import __version__
from narwhal.model.lease import OwnerMeta
from narwhal.model.process import ProcessMark
from narwhal.model.settings import ServeOptions
from narwhal.policy.death import ProcessSight, Signalled

_STATE_FIELD, _START_TIME_FIELD = 3, 22
"""Of /proc/<pid>/stat (proc(5)), counted from 1; the start time is in clock ticks after boot."""


def owner_meta(options: ServeOptions) -> OwnerMeta:
    """What this router writes about itself. Facts that the system does not tell are ""."""
    mark = process_mark()
    return OwnerMeta(
        router_id=options.router_id,
        url=options.advertise_url,
        control_url=options.control_url,
        host=mark.host,
        machine_id=mark.machine_id,
        boot_id=mark.boot_id,
        pidns=mark.pidns,
        pid=mark.pid,
        pid_start=mark.pid_start,
        version=__version__,
    )


def process_mark() -> ProcessMark:
    """This process, as its records name it."""
    pid = os.getpid()
    return ProcessMark(
        host=socket.gethostname(),
        machine_id=_first_line("/etc/machine-id"),
        boot_id=boot_id(),
        pidns=_link("/proc/self/ns/pid"),
        pid=pid,
        pid_start=_stat(pid, _START_TIME_FIELD),
    )


def boot_id() -> str:
    """The kernel's ID of the present boot, "" where there is none."""
    return _first_line("/proc/sys/kernel/random/boot_id")


def look_at(pid: int) -> ProcessSight:
    """What this system says of a process now, whoever it is."""
    start = _stat(pid, _START_TIME_FIELD)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ProcessSight(Signalled.NO_SUCH_PROCESS)
    except PermissionError:
        return ProcessSight(Signalled.FORBIDDEN)
    return ProcessSight(Signalled.REACHED, state=_stat(pid, _STATE_FIELD), start=start)


def _stat(pid: int, number: int) -> str:
    """One field of /proc/<pid>/stat, "" where it cannot be read."""
    text = _first_line(f"/proc/{pid}/stat")
    # The second field is the command's name, in parentheses: it may hold anything, also spaces.
    fields = text.rpartition(")")[2].split()
    return fields[number - _STATE_FIELD] if len(fields) > number - _STATE_FIELD else ""


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
