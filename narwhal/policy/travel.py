"""What a fleet hands on to the next owner, and takes over from the one before (failures.md section 11). Pure.

What of `lifecycle` nobody owns here (a newer router's) is taken as it came and exported so; the machines put
their own over it. So is what it tells of engines that are not in this router's fleet file
(`narwhal.policy.absent`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from narwhal.model.effect import Told
from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument
from narwhal.policy.absent import Absentees
from narwhal.policy.accounts import Accounts
from narwhal.policy.blame import Blame
from narwhal.policy.identification import Identification
from narwhal.policy.judgement import Judgement
from narwhal.policy.outage import Outage
from narwhal.policy.pacing import Pacing
from narwhal.policy.resume import FleetLikeness, unfit
from narwhal.policy.split import Split
from narwhal.policy.upkeep import Upkeep, held_until_a_wave


@dataclass(frozen=True, slots=True)
class Opening:
    """How an ownership begins with a handoff document.

    `cautious`: what it says of engines may no longer be so, each owes a good health check. `verify`: each
    contracted engine owes its identity. `compare`: the processes that it accepted count, at a takeover and at
    a start with `--resume`.
    """

    cautious: bool = False
    verify: bool = False
    compare: bool = True


TAKEOVER = Opening()
"""From an owner that was followed until it ended."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Those of one fleet whose state travels."""

    split: Split
    upkeep: Upkeep
    judgement: Judgement
    blame: Blame
    identification: Identification
    outage: Outage
    pacing: Pacing
    accounts: Accounts
    ours: FleetLikeness
    """What a contracted fleet's saved state must be alike to."""


class Travel:
    """Carries nothing until a document was taken; it is replaced whole by the next one."""

    def __init__(self, machines: Machines) -> None:
        self._of = machines
        self._document: HandoffDocument | None = None
        self._absentees = Absentees(machines.ours.engines)

    def restore(
        self, document: HandoffDocument, now: float, *, opening: Opening, roles_taken: Callable[[], None]
    ) -> tuple[str, ...]:
        """Sentences for the log, empty when everything was taken. `roles_taken` is called when the roles
        are, before the standings."""
        self._document, of = document, self._of
        of.split.risk.restore(document.demand_risk, now)
        notes = of.split.restore(document.engines, document.roles)
        roles_taken()
        of.outage.restore(document.lifecycle)
        held = self._held(document, opening)
        of.judgement.restore(document, now)
        of.blame.restore(document.edges, now)
        of.pacing.begin_anew(now)
        of.accounts.restore_kv(document.kv_ledger, now)
        if opening.cautious:
            of.judgement.standings.require_checks()
        of.identification.restore(
            document.lifecycle, now, verify=opening.verify or opening.cautious, compare=opening.compare
        )
        return (*notes, *held, *self._absentees.restore(document, now))

    def _held(self, document: HandoffDocument, opening: Opening) -> tuple[str, ...]:
        """Drains and the wave. A contracted fleet goes on only with a state that fits: else it waits for a
        wave. Sentences for the log."""
        of = self._of
        why = unfit(document, of.ours) if of.identification.contracted and opening.compare else ""
        required = of.upkeep.restore(document.lifecycle, ejected=document.ejected, unfit=why)
        of.identification.tell_later(required)
        told = tuple(str(one.fields["reason"]) for one in required if isinstance(one, Told))
        return told or ((held_until_a_wave(why),) if why else ())

    def export(self, now: float) -> FleetState:
        """The fleet's part of the handoff document."""
        of, document = self._of, self._document
        lifecycle: dict[str, Any] = {} if document is None else dict(document.lifecycle)
        for name in ("awaiting_identity", "uncompared_starts"):
            lifecycle.pop(name, None)
        state = FleetState(
            roles=dict(of.split.roles),
            lifecycle={
                **lifecycle,
                **of.upkeep.export(),
                **of.identification.export(),
                "backend_outage": of.outage.on(now),
            },
            demand_risk=of.split.risk.export(now),
            edges=of.blame.export(now),
            kv_ledger=of.accounts.export_kv(now),
        )
        return self._absentees.add_to(of.judgement.state(state, now), now)
