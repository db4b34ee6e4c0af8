"""Orders to drain and to readmit, joined with how engines stand: what is refused, what moves. Pure.

| order | refused (409) unless |
| --- | --- |
| drain | one configured engine, restarts are individual, the deadline lies ahead, each leg keeps an engine |
| readmit | one configured engine, restarts are individual, the engine is drained |

An engine that takes no requests anyway may be drained whatever is left: nothing is taken from a leg. A drain
that is on may be ordered again. The whole fleet at once (a wave) is refused: this version has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from narwhal.model.effect import tell
from narwhal.model.evidence import Check, Validated
from narwhal.model.maintenance import Captured, DrainOrder, DrainState, WorkLeft
from narwhal.policy.blame import Blame
from narwhal.policy.drain import Drains, row_of
from narwhal.policy.identification import ProcessStarts
from narwhal.policy.membership import takes_last
from narwhal.policy.readmission import FAILED
from narwhal.policy.standings import Effects, Standings

INDIVIDUAL = "individual"
NO_WAVE = "a wave of the whole fleet is not in this version: drain and readmit the engines one after another"


class Upkeep:
    """Keeps the records and what the standings know of them together."""

    def __init__(
        self,
        engines: Iterable[str],
        *,
        standings: Standings,
        blame: Blame,
        starts: ProcessStarts,
        policy: str,
    ) -> None:
        """`starts`: where a readmission keeps the process that it accepted. `policy`:
        `recovery.engine_restart_policy`."""
        self.drains = Drains(engines)
        self._standings = standings
        self._blame = blame
        self._policy = policy
        self._starts = starts

    # --- what is refused -------------------------------------------------------------------------

    def refuses_drain(self, order: DrainOrder, now: float) -> str:
        """Why not, one sentence; "" if it may be done."""
        why = self._refuses_shape(order, "drain")
        if why:
            return why
        if not isfinite(order.deadline_s) or order.deadline_s <= 0:
            return f"deadline_s must be above 0 and finite, not {order.deadline_s:g}"
        (iid,) = set(order.engines)
        eligible = self._standings.eligible(now)
        if iid in eligible and takes_last(iid, able=self._standings.able, eligible=eligible):
            return f"{iid} cannot be drained: no other engine can take its part now; bring one back first"
        return ""

    def refuses_readmit(self, order: DrainOrder) -> str:
        """As `refuses_drain`."""
        why = self._refuses_shape(order, "readmit")
        if why:
            return why
        (iid,) = set(order.engines)
        if not self.drains.record(iid).out:
            return f"{iid} is not drained: there is nothing to readmit"
        return ""

    def _refuses_shape(self, order: DrainOrder, verb: str) -> str:
        known = self._standings.engines
        named = set(order.engines)
        if not order.wave and not named:
            return f"engines is empty: name the engine to {verb}"
        unknown = sorted(named - set(known))
        if unknown:
            return f"{unknown[0][:64]} is no engine of this fleet; its engines are {', '.join(known)}"
        if order.wave or (len(known) > 1 and named == set(known)):
            return NO_WAVE
        if len(named) > 1:
            return f"{len(named)} engines are neither one nor the whole fleet: {verb} them one after another"
        if self._policy != INDIVIDUAL:
            return f"engine_restart_policy is {self._policy}: no order for a single engine is taken"
        return ""

    # --- what moves ------------------------------------------------------------------------------

    def drain(self, iid: str, *, deadline_at: float) -> Effects:
        """Out of placement from now on. Drained before: at most the deadline is later."""
        if not self.drains.drain(iid, deadline_at=deadline_at):
            return ()
        freed = self._standings.set_drained(self.drains.out())
        return (tell("drain", iid, reason="an operator took it out of placement"), *freed)

    def captured(self, iid: str, captured: Captured) -> None:
        self.drains.captured(iid, captured)

    def settle(self, iid: str, work: WorkLeft) -> Effects:
        if not self.drains.settle(iid, work):
            return ()
        reason = "no work is left and its process is on record: it may be stopped"
        return (tell("drained", iid, reason=reason),)

    def expire(self, wall: float) -> Effects:
        """`wall`: Unix seconds."""
        reason = "the deadline of its drain passed: it stays out, its work goes on"
        return tuple(tell("drain_deadline", iid, reason=reason) for iid in self.drains.expire(wall))

    def validated(self, told: Validated, *, process_start: float | None, now: float) -> Effects:
        """How a validation ended; `process_start` is what it found, None if it did not come so far. Not
        under way (an owner between): nothing."""
        iid, checks = told.iid, told.checks
        if self.drains.record(iid).state is not DrainState.VALIDATING:
            return ()
        error = _why_blocked(iid, checks, conclusive=told.conclusive)
        if error:
            self.drains.block(iid, checks, error=error, process_start=process_start)
            name = next((check.name for check in checks if check.outcome == FAILED), "")
            return (tell("readmission_failed", iid, reason=error, check=name),)
        self.drains.passed(iid, checks, process_start=process_start)
        self._standings.set_drained(self.drains.out())
        if process_start is not None:
            self._starts.accept(iid, process_start)
        return self._blame.reinstate(iid, now)

    # --- what travels ----------------------------------------------------------------------------

    def rows(self) -> dict[str, dict[str, Any]]:
        """Engine ID to its record, those of active engines too."""
        return {record.iid: row_of(record) for record in self.drains.records()}

    def export(self) -> dict[str, Any]:
        """Its fields of the handoff's `lifecycle`."""
        return {"records": self.drains.export(), "engine_restart_policy": self._policy}

    def restore(self, lifecycle: Mapping[str, Any]) -> None:
        """Takes them from a handoff. Before the standings are restored: holds of drained engines are none."""
        self.drains.restore(lifecycle.get("records"))
        self._standings.set_drained(self.drains.out())


def _why_blocked(iid: str, checks: tuple[Check, ...], *, conclusive: bool) -> str:
    """Empty when every check passed or was skipped."""
    failed = next((check for check in checks if check.outcome == FAILED), None)
    if failed is not None:
        detail = failed.detail.rstrip(".")
        return f"{iid} stays out: the check {failed.name} failed ({detail}); mend that and readmit it again"
    if not conclusive or not checks:
        last = f" after {checks[-1].name}" if checks else ""
        return f"{iid} stays out: the checks could not be finished{last}; readmit it again"
    return ""
