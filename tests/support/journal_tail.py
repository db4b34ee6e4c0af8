"""The rows that a router's journal has gained, read as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class JournalTail:
    """`read` returns what is new since the last call, whole lines only, oldest first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        return [json.loads(line) for line in lines if line]
