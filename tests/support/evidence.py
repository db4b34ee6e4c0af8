"""An EvidenceSink that keeps what it is told, for tests of those who tell it."""

from __future__ import annotations

from typing import TypeVar

from narwhal.model.evidence import Evidence
from narwhal.ports import EvidenceSink

E = TypeVar("E")


class Heard:
    """Asks `judge` too, if there is one. `suspect`: every report is answered with that; `suspects`: ways of
    failure that are called poison whatever the judge says."""

    def __init__(self, judge: EvidenceSink | None = None, *, suspect: bool = False) -> None:
        self.evidence: list[Evidence] = []
        self.suspects: set[str] = set()
        self._judge = judge
        self._suspect = suspect

    def report(self, evidence: Evidence) -> bool:
        self.evidence.append(evidence)
        judged = self._judge is not None and self._judge.report(evidence)
        return judged or self._suspect or getattr(evidence, "way", None) in self.suspects

    def of(self, kind: type[E]) -> list[E]:
        """What was told of one kind, oldest first."""
        return [one for one in self.evidence if isinstance(one, kind)]
