"""This router's own state as the handoff document, and back: fleet, totals and what is only carried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from narwhal.clock import Clock
from narwhal.model.handoff import HandoffDocument
from narwhal.model.request import Counters
from narwhal.policy.fleet import Fleet
from narwhal.policy.takeover import OpeningPlan, SavedState, grown_older, without_roles
from narwhal.policy.totals import Totals, greater
from narwhal.policy.travel import Opening


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes the document. `run` is the journal run ID, `boot_id` the host's boot ("" if unknown)."""

    router_id: str
    run: str
    model: str
    engines: tuple[str, ...]
    boot_id: str = ""


class OwnState:
    """Composes and restores. Main loop only; synchronous, so one instant's truth."""

    def __init__(self, fleet: Fleet, totals: Totals, *, identity: Identity, clock: Clock) -> None:
        self._fleet = fleet
        self._totals = totals
        self._clock = clock
        self.identity = identity
        self.counters: Callable[[], Counters] = totals.total
        """What documents say; with a store only what it has confirmed, so that no document runs ahead of
        the totals that a successor will find."""
        self._inherited = Counters()
        self._extra: Mapping[str, Any] = {}

    @property
    def contracted(self) -> bool:
        """The fleet has an engine contract."""
        return self._fleet.identification.contracted

    def runs(self) -> Mapping[str, Counters]:
        """The counters of every run known, for the local file."""
        return self._totals.vector()

    def remember(self, saved: SavedState | None, runs: Mapping[str, Counters]) -> None:
        """Takes the counters of runs that the local file tells, if its document is of this fleet.

        Absolute counters run by run: whoever else knows them, nothing counts twice.
        """
        if saved is not None and not set(self.identity.engines).isdisjoint(saved.document.engines):
            self._totals.merge(runs)

    def compose(self, *, epoch: int, holder: str) -> HandoffDocument:
        """The document of this instant."""
        now = self._clock.now()
        fleet = self._fleet.export(now)
        return HandoffDocument(
            at=self._clock.wall(),
            run=self.identity.run,
            model=self.identity.model,
            epoch=epoch,
            holder=holder,
            engines=self.identity.engines,
            roles=fleet.roles,
            ejected=fleet.ejected,
            ejections=fleet.ejections,
            inference_sources=fleet.inference_sources,
            inference_holds=fleet.inference_holds,
            counters=greater(self.counters(), self._inherited),
            lifecycle=fleet.lifecycle,
            demand_risk=fleet.demand_risk,
            holds=fleet.holds,
            streaks=fleet.streaks,
            edges=fleet.edges,
            kv_ledger=fleet.kv_ledger,
            extra=self._extra,
        )

    def restore(self, plan: OpeningPlan, *, totals_known: bool = True) -> tuple[str, ...]:
        """Begins with the plan's state; sentences for the log. Merge the store's totals before;
        `totals_known`: they were read, or there is no store."""
        if plan.state is None:
            return plan.notes
        state = grown_older(plan.state if plan.keep_roles else without_roles(plan.state))
        self._extra = state.document.extra
        self._inherited = greater(self._inherited, state.document.counters)
        if totals_known and state.source == "checkpoint" and self._totals.others() == Counters():
            # A bare document tells the sum of all runs under one name. Beside runs that somebody knows, or
            # that a silent store may know, they would count twice.
            self._totals.merge({state.document.run: state.document.counters})
        opening = Opening(cautious=plan.cautious, verify=plan.verify, compare=plan.keep_roles)
        notes = self._fleet.restore(state.document, self._clock.now(), opening=opening)
        return (*plan.notes, *notes)
