"""Which engine has which role, and what moves one: pins, a handoff document, role control. Pure.

A move changes where new requests go and leaves resident work where it is.

| event | effect |
| --- | --- |
| restore | roles of unpinned engines as told; of another engine set: the configured ones |
| control | what role control decides: at most one move a pass, told; to decode it is a risk event |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from narwhal.model.effect import Effect, tell
from narwhal.model.engine import EngineSpec, Leg, Role
from narwhal.model.role_control import DecisionWord, RoleDecision
from narwhal.model.settings import ControllerSettings
from narwhal.policy.demand import DemandRisk, Risk
from narwhal.policy.roles import EngineSight, RoleControl

ROLE_OF = {Leg.PREFILL: Role.PREFILL, Leg.DECODE: Role.DECODE}
_TOLD_AS = {
    DecisionWord.MOVE: "role_change",
    DecisionWord.PROPOSE: "role_proposal",
    DecisionWord.REFUSE: "role_refusal",
}


class Split:
    """The roles of the configured engines. `roles`: engine ID to its role now, sorted by ID; `moves`: how
    many role control has made."""

    def __init__(self, engines: Iterable[EngineSpec], settings: ControllerSettings) -> None:
        self._specs = {spec.iid: spec for spec in engines}
        self.roles = {iid: spec.role for iid, spec in self._specs.items()}
        self.pinned = tuple(iid for iid, spec in self._specs.items() if spec.pin)
        self.moves = 0
        self.risk = DemandRisk()
        self._settings = settings
        self.role_control = RoleControl(settings)

    def able(self) -> Mapping[Leg, frozenset[str]]:
        """Per leg: engines of its role, and the unpinned ones of the other role."""
        return {
            leg: frozenset(
                iid for iid, spec in self._specs.items() if self.roles[iid] is role or not spec.pin
            )
            for leg, role in ROLE_OF.items()
        }

    def restore(self, engines: Sequence[str], roles: Mapping[str, str]) -> tuple[str, ...]:
        """Takes the roles of unpinned engines; sentences for the log, empty when they were taken.

        With another engine set the configured split stays (cluster.md section 7). Decisions of an earlier
        ownership are gone (section 6).
        """
        self.role_control = RoleControl(self._settings)
        self.moves = 0
        if set(engines) != set(self._specs):
            self.roles = {iid: spec.role for iid, spec in self._specs.items()}
            return (f"the handoff is for engines {', '.join(engines)}: roles stay as configured",)
        for iid, spec in self._specs.items():
            if not spec.pin and iid in roles:
                self.roles[iid] = Role(roles[iid])
        return ()

    def control(self, sights: Sequence[EngineSight], now: float) -> tuple[Effect, ...]:
        """Role control, once a pass. `sights` has every configured engine."""
        before = self.role_control.last
        decision = self.role_control.decide(sights, now)
        if decision.word is DecisionWord.MOVE and decision.role is not None:
            self.roles[decision.iid] = decision.role
            self.moves += 1
            if decision.role is Role.DECODE:
                self.risk.note(Risk.MOVE_TO_DECODE, now)
        return _told(decision) if before is None or not decision.repeats(before) else ()


def _told(decision: RoleDecision) -> tuple[Effect, ...]:
    kind = _TOLD_AS.get(decision.word)
    if kind is None:
        return ()
    made = decision.word is DecisionWord.MOVE
    role = decision.role.value if decision.role is not None else ""
    return (tell(kind, decision.iid, role=role, rule=decision.rule, reason=decision.reason, enforced=made),)
