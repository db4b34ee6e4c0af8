"""Independent checkers of I1 to I4: they look at routers and store from outside, after every event.

They share no code with the machines they judge: ownership is what a gate says by its own clock, epochs and
numbers are what the store accepted, counters are compared with what the simulated clients counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import orjson

from narwhal.store.memory_scripts import Data
from tests.simulation.routers import SimRouter


class Violation(AssertionError):
    """An invariant of cluster.md section 1 does not hold."""


@dataclass(slots=True)
class Shadow:
    """What the store accepted in its present line of data."""

    granted: int = 0
    published: tuple[int, int] = (0, 0)
    logged: tuple[int, int] = (0, 0)
    served: int = 0


class Checkers:
    """`routers` are all lives ever started, `living` the latest of each host, `data` the store's data."""

    def __init__(
        self,
        routers: Callable[[], Sequence[SimRouter]],
        living: Callable[[], Collection[SimRouter]],
        *,
        data: Callable[[], Data],
    ) -> None:
        self._routers = routers
        self._living = living
        self._data = data
        self._admitting = ""
        self.opened: list[tuple[int, str]] = []
        self.shadow = Shadow()
        self.openings = 0

    # --- I1, I2: after every event -----------------------------------------------------------------

    def after_event(self) -> None:
        admitting = [router for router in self._living() if router.parts.gate.grip and router.admits()]
        if len(admitting) > 1:
            raise Violation(f"I1: {', '.join(router.run for router in admitting)} admit at the same time")
        if not admitting:
            self._admitting = ""
            return
        epoch = admitting[0].parts.gate.epoch
        holder = admitting[0].parts.gate.holder
        if holder != self._admitting:
            self._admitting = holder
            self._note_opening(epoch, holder)

    def _note_opening(self, epoch: int, holder: str) -> None:
        if self.opened and self.opened[-1][1] == holder:
            return
        self.openings += 1
        if self.opened and epoch <= self.opened[-1][0]:
            raise Violation(f"I2: epoch {epoch} of {holder} after {self.opened[-1]}")
        self.opened.append((epoch, holder))

    # --- I3: after every operation that the store applied ------------------------------------------

    def after_write(self, router: str) -> None:
        data, shadow = self._data(), self.shadow
        held = data.lease.get("state") == "held"
        shadow.granted = max(shadow.granted, int(data.lease["epoch"]) if held else 0)
        published = (int(data.handoff.get("epoch", 0)), int(data.handoff.get("seq", 0)))
        logged = (data.log_top.epoch, data.log_top.n)
        if published < shadow.published:
            raise Violation(f"I3: the handoff went back from {shadow.published} to {published}")
        if published > shadow.published and published[0] < shadow.granted:
            raise Violation(f"I3: a handoff of epoch {published[0]} after {shadow.granted} was granted")
        if logged < shadow.logged:
            raise Violation(f"I3: the log went back from {shadow.logged} to {logged}")
        if published > shadow.published:
            self._counters_grow(orjson.loads(data.handoff["document"])["counters"]["served"])
        shadow.published, shadow.logged = published, logged

    def _counters_grow(self, served: int) -> None:
        if served < self.shadow.served:
            raise Violation(f"I4: a document tells {served} served, an earlier one told {self.shadow.served}")
        self.shadow.served = served
        counted = sum(router.counted for router in self._routers())
        if served > counted:
            raise Violation(f"I4: a document tells {served} served, {counted} were counted")

    def store_changed_by_fault(self) -> None:
        """Data were lost on purpose: a new line of data begins."""
        data = self._data()
        held = data.lease.get("state") == "held"
        self.shadow = Shadow(
            granted=int(data.lease["epoch"]) if held else 0,
            published=(int(data.handoff.get("epoch", 0)), int(data.handoff.get("seq", 0))),
            logged=(data.log_top.epoch, data.log_top.n),
        )

    # --- I4 ----------------------------------------------------------------------------------------

    def counters(self) -> None:
        """Nothing is counted twice: no router and no store tells more than was counted."""
        truth = {router.run: router.counted for router in self._routers()}
        for router in self._routers():
            self._not_above(truth, {run: c.served for run, c in router.totals.vector().items()}, router.run)
        self._not_above(truth, self.stored(), "the store")

    def stored(self) -> Mapping[str, int]:
        return {run: orjson.loads(text).get("served", 0) for run, text in self._data().totals.items()}

    def _not_above(self, truth: Mapping[str, int], told: Mapping[str, int], who: str) -> None:
        for run, served in told.items():
            if served > truth.get(run, 0):
                raise Violation(f"I4: {who} tells {served} for {run}, {truth.get(run, 0)} were counted")
