"""What a gate found. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

FLEET = "fleet"
"""Subject of a finding about no single engine."""


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject`: an engine ID, an edge (`e0 -> e1`) or FLEET. `detail`: one sentence or more, may be "".

    `warning`: what does not fail the gate and should be known. `measured`: figures by name, units last.
    """

    subject: str
    verdict: Verdict
    detail: str = ""
    warning: str = ""
    measured: Mapping[str, float | int | str] = field(default_factory=dict)


Figures = Mapping[str, float | int | str]


def passed(
    subject: str, detail: str = "", *, warning: str = "", measured: Figures = MappingProxyType({})
) -> Finding:
    return Finding(subject, Verdict.PASSED, detail, warning, measured)


def failed(subject: str, detail: str, *, measured: Figures = MappingProxyType({})) -> Finding:
    return Finding(subject, Verdict.FAILED, detail, measured=measured)


def skipped(subject: str, detail: str) -> Finding:
    return Finding(subject, Verdict.SKIPPED, detail)


@dataclass(frozen=True, slots=True)
class GateReport:
    """One gate. `findings` are never empty."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """Failed with one that failed, skipped where all were."""
        found = {finding.verdict for finding in self.findings}
        if Verdict.FAILED in found:
            return Verdict.FAILED
        return Verdict.PASSED if Verdict.PASSED in found else Verdict.SKIPPED

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "outcome": self.verdict.value,
            "findings": [
                {
                    "subject": finding.subject,
                    "outcome": finding.verdict.value,
                    "detail": finding.detail,
                    "warning": finding.warning,
                    "measured": dict(finding.measured),
                }
                for finding in self.findings
            ],
        }
