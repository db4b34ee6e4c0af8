"""How engines stand: the words and views of holds, streaks and ejections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from narwhal.model.evidence import Check


class HoldKind(StrEnum):
    """A quarantine ends at its time, an inference hold by a probe."""

    QUARANTINE = "quarantine"
    INFERENCE = "inference"


@dataclass(frozen=True, slots=True)
class HoldView:
    """One hold as people see it. `remaining_s` is None for an inference hold."""

    kind: HoldKind
    reason: str
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class EjectionView:
    """Why an engine is out, and how its newest readmission checks ended; `checks` are empty before any.

    `step`: the check that failed last, "" before the first and while none does; `detail` what it said.
    `waits`: every check passed, and it comes back with the others that are out.
    """

    reason: str
    step: str = ""
    detail: str = ""
    checks: tuple[Check, ...] = ()
    waits: bool = False

    @property
    def sentence(self) -> str:
        then = f"; {self.step} failed: {self.detail}" if self.step else ""
        if self.step and self.detail and self.detail in self.reason:
            then = f"; the check {self.step} fails in the same way"
        if self.waits:
            then = "; every check passed, it waits for the others that are out"
        return f"ejected: {self.reason}{then}"


@dataclass(frozen=True, slots=True)
class StandingView:
    """Who is suspected, held or out at one instant; every list and mapping sorted.

    `failures` maps engine ID to class to failures in a row, `holds` engine ID to the hold that counts.
    `verifying`: engines that owe a health check or an inference probe.
    """

    failures: Mapping[str, Mapping[str, int]]
    verifying: tuple[str, ...]
    ejected: tuple[str, ...]
    holds: Mapping[str, HoldView]
