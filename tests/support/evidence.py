"""An EvidenceSink that keeps what it is told, for tests of those who tell it."""

from __future__ import annotations

from typing import TypeVar

from narwhal.model.evidence import Evidence

E = TypeVar("E")


class Heard:
    """`suspect` is what every report is answered with."""

    def __init__(self, *, suspect: bool = False) -> None:
        self.evidence: list[Evidence] = []
        self._suspect = suspect

    def report(self, evidence: Evidence) -> bool:
        self.evidence.append(evidence)
        return self._suspect

    def of(self, kind: type[E]) -> list[E]:
        """What was told of one kind, oldest first."""
        return [one for one in self.evidence if isinstance(one, kind)]
