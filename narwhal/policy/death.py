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

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from narwhal.model.process import ProcessMark


class Signalled(Enum):
    """What `kill(pid, 0)` said."""

    REACHED = "reached"
    NO_SUCH_PROCESS = "no such process"
    FORBIDDEN = "not permitted"


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


def blind(_pid: int) -> ProcessSight:
    """Sees nothing, so it proves nothing."""
    return ProcessSight(Signalled.FORBIDDEN)
