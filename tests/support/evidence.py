"""`ports.EvidenceSink` that remembers what was said to it."""

from __future__ import annotations

from narwhal.model.evidence import Evidence
from narwhal.ports import EvidenceSink


class NotedEvidence:
    """Keeps everything in `said` and asks `judge`, if there is one. `suspects`: ways that it calls poison
    whatever the judge says."""

    def __init__(self, judge: EvidenceSink | None = None) -> None:
        self.said: list[Evidence] = []
        self.suspects: set[str] = set()
        self._judge = judge

    def report(self, evidence: Evidence) -> bool:
        self.said.append(evidence)
        suspected = self._judge is not None and self._judge.report(evidence)
        return suspected or getattr(evidence, "way", None) in self.suspects
