"""The degraded flag of monitoring (failures.md section 1): counts failed stages and failed passes.

| state | event | next |
| --- | --- | --- |
| sound | pass with failures, streak below the limit | sound |
| sound | pass with failures, streak reaches the limit | degraded, `monitoring_degraded` |
| degraded | pass with failures | degraded |
| degraded | clean pass, what had failed was tried | sound, streak 0, `monitoring_recovered` |
| degraded | clean pass, it was not: this router owns no more | sound, streak 0, `monitoring_ended` |

Streaks and counters start at zero in a new process; they do not travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from narwhal.errors import InvariantViolation
from narwhal.model.monitoring import MonitoringView, StageReport, StageTally


@dataclass(frozen=True, slots=True)
class MonitoringEvent:
    """One journal event: `kind` and its fields. `repeated`: as the last one of its stage."""

    kind: str
    fields: Mapping[str, Any]
    repeated: bool = False


class Monitoring:
    """Fed with every StageReport and the end of every pass; says whether monitoring is degraded."""

    __slots__ = (
        "_consecutive",
        "_failing",
        "_failures",
        "_first",
        "_limit",
        "_pass_failed",
        "_reason",
        "_stages",
    )

    def __init__(self, *, limit: int, stages: Iterable[str]) -> None:
        """`limit`: `controller.monitor_failure_limit`, ≥ 1. `stages`: the names that may report."""
        self._limit = limit
        self._stages: dict[str, StageTally] = {name: StageTally() for name in stages}
        self._consecutive = 0
        self._failures = 0
        self._pass_failed = False
        self._failing: set[str] = set()
        """Stages that failed when they last ran."""
        self._first = ""
        self._reason = ""

    @property
    def reason(self) -> str:
        """`monitoring degraded: <stage> <ExceptionClass>`, "" while sound."""
        return self._reason

    @property
    def degraded(self) -> bool:
        return bool(self._reason)

    def stage_ended(self, report: StageReport) -> tuple[MonitoringEvent, ...]:
        """Counts one report. Raises InvariantViolation for a stage that was never announced."""
        tally = self._stages.get(report.stage)
        if tally is None:
            raise InvariantViolation(f"a report of the unknown monitor stage {report.stage!r}")
        if not report.failure:
            self._failing.discard(report.stage)
            self._stages[report.stage] = replace(tally, consecutive=0)
            return ()
        repeated = tally.consecutive > 0 and tally.last_class == report.failure
        self._failing.add(report.stage)
        tally = StageTally(
            failures=tally.failures + 1,
            consecutive=tally.consecutive + 1,
            last_class=report.failure,
            last_at=report.at,
        )
        self._stages[report.stage] = tally
        self._failures += 1
        self._pass_failed = True
        self._first = self._first or f"{report.stage} {report.failure}"
        fields = {"stage": report.stage, "class": report.failure, "consecutive": tally.consecutive}
        return (MonitoringEvent("monitoring_stage_failure", fields, repeated),)

    def pass_ended(self) -> tuple[MonitoringEvent, ...]:
        """Judges the pass whose stages were reported since the last call."""
        failed, self._pass_failed = self._pass_failed, False
        if failed:
            return self._failed_pass()
        was_degraded, streak = self.degraded, self._consecutive
        untried, self._failing = self._failing, set()
        for stage in untried:
            self._stages[stage] = replace(self._stages[stage], consecutive=0)
        self._consecutive, self._first, self._reason = 0, "", ""
        if not was_degraded:
            return ()
        kind = "monitoring_ended" if untried else "monitoring_recovered"
        return (MonitoringEvent(kind, {"failed_passes": streak}),)

    def _failed_pass(self) -> tuple[MonitoringEvent, ...]:
        self._consecutive += 1
        if self.degraded or self._consecutive < self._limit:
            return ()
        self._reason = f"monitoring degraded: {self._first}"
        fields = {"reason": self._reason, "consecutive": self._consecutive}
        return (MonitoringEvent("monitoring_degraded", fields),)

    def tally(self, stage: str) -> StageTally:
        """The counts of one announced stage."""
        return self._stages[stage]

    def view(self) -> MonitoringView:
        return MonitoringView(
            degraded=self.degraded,
            reason=self._reason,
            consecutive=self._consecutive,
            failures=self._failures,
            stages=dict(self._stages),
        )

    def check_invariants(self) -> None:
        """Raises InvariantViolation where the counters contradict each other."""
        if self._failures != sum(tally.failures for tally in self._stages.values()):
            raise InvariantViolation("monitoring: failures are not the sum of the stages' failures")
        if self.degraded and self._consecutive < self._limit:
            raise InvariantViolation("monitoring: degraded below the limit")
