"""Proof that the process which a record names has ended (cluster.md section 5). Pure.

A record tells host, machine ID, boot ID, PID namespace, PID and start time of the process that wrote it.
Only the same kernel, in the same boot and PID namespace, can say anything about that PID:

| what is seen | proves |
| --- | --- |
| a fact of the place is unknown on either side, or differs | nothing |
| no such process (ESRCH) | death |
| not permitted to signal it (EPERM) | nothing |
| state Z | nothing: the first thread has ended, others may run on |
| start time not readable | nothing |
| another start time | death: the PID was given again |
| the same start time | nothing: it lives |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum


class Signalled(Enum):
    """What `kill(pid, 0)` said."""

    REACHED = "reached"
    NO_SUCH_PROCESS = "no such process"
    FORBIDDEN = "not permitted"


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """Which process on which host. Unknown facts are "" and 0; `pid_start` is in clock ticks after boot."""

    host: str = ""
    machine_id: str = ""
    boot_id: str = ""
    pidns: str = ""
    pid: int = 0
    pid_start: str = ""

    @classmethod
    def of_record(cls, fields: Mapping[str, str]) -> ProcessMark:
        """From a stored record; what is missing or no number is unknown."""
        pid = fields.get("pid", "")
        return cls(
            host=fields.get("host", ""),
            machine_id=fields.get("machine_id", ""),
            boot_id=fields.get("boot_id", ""),
            pidns=fields.get("pidns", ""),
            pid=int(pid) if pid.isascii() and pid.isdigit() else 0,
            pid_start=fields.get("pid_start", ""),
        )

    @property
    def place(self) -> tuple[str, str, str, str]:
        return (self.host, self.machine_id, self.boot_id, self.pidns)


@dataclass(frozen=True, slots=True)
class ProcessSight:
    """What the system says of one PID now. `state` is the letter of /proc/<pid>/stat; "" = not readable."""

    signalled: Signalled
    state: str = ""
    start: str = ""


def proves_death(theirs: ProcessMark, ours: ProcessMark, *, look: Callable[[int], ProcessSight]) -> bool:
    """`look` is asked only about a process of this very place."""
    if not all(theirs.place) or theirs.place != ours.place or theirs.pid <= 0:
        return False
    sight = look(theirs.pid)
    if sight.signalled is not Signalled.REACHED:
        return sight.signalled is Signalled.NO_SUCH_PROCESS
    if sight.state in ("", "Z") or not sight.start or not theirs.pid_start:
        return False
    return sight.start != theirs.pid_start
