"""Independent checkers of the invariants: they look at routers and store from outside, after every event.

They share no code with the machines they judge: ownership is what a gate says by its own clock, epochs and
numbers are what the store accepted, counters are compared with what the simulated clients counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import orjson

from narwhal.cluster.gate import Grip
from narwhal.store.memory_scripts import Data
from tests.simulation.operator import Operator
from tests.simulation.routers import OWN_CAUSE, Sent, SimRouter

TRUCE_S = 59.0
"""After a yield by claim there is none for 60 s; clocks differ a little."""


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
        operator: Operator,
    ) -> None:
        self._routers = routers
        self._living = living
        self._data = data
        self._operator = operator
        self.keeps_promises = True
        """False: the faults of this run may destroy every copy of what was stored."""
        self._found: Violation | None = None
        self._grips: list[Grip | None] = []
        self._fenced: set[str] = set()
        self._dispatched = (0, "")
        self._claimed_at = -TRUCE_S
        self._yielded: set[str] = set()
        self._seen: dict[str, int] = {}
        self.opened: list[tuple[int, str]] = []
        self.shadow = Shadow()
        self.openings = 0
        self.losses = 0

    def _report(self, text: str) -> None:
        """Raised at the next event of a router: what finds it may run inside a task that swallows it."""
        self._found = self._found or Violation(text)

    # --- I1, I2: after every event -----------------------------------------------------------------

    def after_event(self) -> None:
        """Only a changed grip can open a gate; between changes time can but close it."""
        if self._found is not None:
            raise self._found
        living = self._living()
        # The field and not the property: this is the one line that runs after every event.
        grips = [router.parts.gate._grip for router in living]
        if grips == self._grips:
            return
        self._grips = grips
        admitting = [router for router in living if router.parts.gate.grip and router.admits()]
        if len(admitting) > 1:
            self._report(f"I1: {', '.join(router.run for router in admitting)} admit at the same time")
        for router in living:
            self._note_grip(router.parts.gate.grip)
        for router in admitting:
            self._note_opening(router.parts.gate.epoch, router.parts.gate.holder)
            self.promises(router)
        if self._found is not None:
            raise self._found

    def _note_grip(self, grip: Grip | None) -> None:
        if grip is None:
            return
        if grip.fenced_why:
            self._fenced.add(grip.holder)
        elif grip.holder in self._fenced:
            self._report(f"I9: {grip.holder} was fenced and holds again")

    def _note_opening(self, epoch: int, holder: str) -> None:
        if self.opened and self.opened[-1][1] == holder:
            return
        self.openings += 1
        if self.opened and epoch <= self.opened[-1][0]:
            self._report(f"I2: epoch {epoch} of {holder} after {self.opened[-1]}")
        self.opened.append((epoch, holder))

    def sent(self, sent: Sent) -> bool:
        """No renewal leaves a router under a token that was fenced there."""
        grip = sent.router.parts.gate.grip
        if (
            grip is not None
            and grip.fenced_why
            and sent.script == "lease_renew"
            and grip.token == sent.args[0]
        ):
            self._report(f"I9: {sent.router.run} renews a fenced token ({grip.fenced_why})")
        return False

    def only_engines_remember(self) -> None:
        """Memories, checkpoints and calendar are gone: an owner may open below earlier epochs, and no engine
        that remembers them takes anything from it."""
        self.opened.clear()
        self._dispatched = (0, "")

    def released_by_claim(self, router: SimRouter, to: str, *, now: float) -> None:
        """A cause that all routers share must not pass ownership round; nor may one that seems the owner's
        own come back to who has yielded for it."""
        since = now - self._claimed_at
        if since >= TRUCE_S:
            self._yielded.clear()
        elif router.degraded != OWN_CAUSE:
            self._report(f"truce: a second yield by claim {since:.1f} s after the first")
        elif to in self._yielded:
            self._report(f"truce: {to} has yielded by claim {since:.1f} s ago or later and gets it back")
        self._yielded.add(router.host.name)
        self._claimed_at = now

    # --- what an engine that fences would refuse ----------------------------------------------------

    def dispatched(self, router: SimRouter, epoch: int) -> None:
        """A prefill went to an engine under `epoch`: never below an earlier one, and one router an epoch."""
        before = self._dispatched
        if epoch < before[0] or (epoch == before[0] and before[1] != router.run):
            self._report(
                f"I1: {router.run} dispatches under epoch {epoch} after {before[1]} under {before[0]}"
            )
        self._dispatched = (epoch, router.run)

    # --- I5 ----------------------------------------------------------------------------------------

    def promises(self, owner: SimRouter) -> None:
        """What an operator was told is drained is out on every later owner, from its first instant."""
        if self.keeps_promises and (lost := self._operator.lost_by(owner)):
            self._report(f"I5: {lost}")

    # --- I3: after every operation that the store applied ------------------------------------------

    def after_write(self, router: str) -> None:
        data, shadow = self._data(), self.shadow
        held = data.lease.get("state") == "held"
        shadow.granted = max(shadow.granted, int(data.lease["epoch"]) if held else 0)
        published = (int(data.handoff.get("epoch", 0)), int(data.handoff.get("seq", 0)))
        logged = (data.log_top.epoch, data.log_top.n)
        if published < shadow.published:
            self._report(f"I3: the handoff went back from {shadow.published} to {published}")
        if published > shadow.published and published[0] < shadow.granted:
            self._report(f"I3: a handoff of epoch {published[0]} after {shadow.granted} was granted")
        if logged > shadow.logged and logged[0] < shadow.granted:
            self._report(f"I3: a log entry of epoch {logged[0]} after {shadow.granted} was granted")
        if logged < shadow.logged:
            self._report(f"I3: the log went back from {shadow.logged} to {logged}")
        if published > shadow.published:
            self._counters_grow(orjson.loads(data.handoff["document"])["counters"]["served"])
        shadow.published, shadow.logged = published, logged

    def _counters_grow(self, served: int) -> None:
        if served < self.shadow.served:
            self._report(f"I4: a document tells {served} served, an earlier one told {self.shadow.served}")
        self.shadow.served = served
        counted = sum(router.counted for router in self._routers())
        if served > counted:
            self._report(f"I4: a document tells {served} served, {counted} were counted")

    def store_changed_by_fault(self) -> None:
        """Data were lost on purpose: a new line of data begins."""
        self.losses += 1
        data = self._data()
        held = data.lease.get("state") == "held"
        self.shadow = Shadow(
            granted=int(data.lease["epoch"]) if held else 0,
            published=(int(data.handoff.get("epoch", 0)), int(data.handoff.get("seq", 0))),
            logged=(data.log_top.epoch, data.log_top.n),
        )

    # --- I4 ----------------------------------------------------------------------------------------

    def counters(self) -> None:
        """Nothing is counted twice: no router and no store tells more than was counted. Nothing goes back: no
        living router forgets what it knew."""
        truth = {router.run: router.counted for router in self._routers()}
        for router in self._routers():
            self._not_above(truth, _served(router), router.run)
        self._not_above(truth, self.stored(), "the store")
        for router in self._living():
            told = router.totals.total().served
            if told < self._seen.get(router.run, 0):
                self._report(f"I4: the total of {router.run} went back to {told}")
            self._seen[router.run] = told

    def stored(self) -> Mapping[str, int]:
        return {run: orjson.loads(text).get("served", 0) for run, text in self._data().totals.items()}

    def at_end(self) -> None:
        """Late finishers of fenced routers are in the owner's total too."""
        for router in self._living():
            if router.admits():
                self.promises(router)
        if unknown := self.unknown_to_owner():
            self._report(f"I4: the owner does not know what the store knows: {unknown}")

    def unknown_to_owner(self) -> Mapping[str, int]:
        """Runs of which the store has counted more than the owner knows, as the store has it."""
        stored = self.stored()
        told = next((_served(router) for router in self._living() if router.admits()), stored)
        return {run: served for run, served in stored.items() if told.get(run, 0) < served}

    def _not_above(self, truth: Mapping[str, int], told: Mapping[str, int], who: str) -> None:
        for run, served in told.items():
            if served > truth.get(run, 0):
                self._report(f"I4: {who} tells {served} for {run}, {truth.get(run, 0)} were counted")


def _served(router: SimRouter) -> Mapping[str, int]:
    return {run: counters.served for run, counters in router.totals.vector().items()}
