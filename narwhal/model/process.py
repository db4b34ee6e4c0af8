"""Which process on which host: what a record tells of its writer, so that its death can be proved later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

_PID = re.compile(r"[0-9]{1,9}")
"""More is no PID, and no C integer."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """Unknown facts are "" and 0. `pid_start` is in clock ticks after boot; `pidns` names a PID namespace."""

    host: str = ""
    machine_id: str = ""
    boot_id: str = ""
    pidns: str = ""
    pid: int = 0
    pid_start: str = ""

    @classmethod
    def of_record(cls, record: Mapping[str, str]) -> ProcessMark:
        """From stored fields; what is missing or no number is unknown."""
        texts = {field.name: record.get(field.name, "") for field in fields(cls)}
        pid = texts.pop("pid")
        return cls(pid=int(pid) if _PID.fullmatch(pid) else 0, **texts)

    def record(self) -> dict[str, str]:
        """The fields as they are stored."""
        return {field.name: str(getattr(self, field.name)) for field in fields(self)}

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where its PID means something."""
        return (self.host, self.machine_id, self.boot_id, self.pidns)


UNKNOWN_PROCESS = ProcessMark()
