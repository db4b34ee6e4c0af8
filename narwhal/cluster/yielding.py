"""An order to hand the lease over: refused before anything closes, or carried out (cluster.md section 5)."""

from __future__ import annotations

from narwhal.clock import Clock
from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.member import Member
from narwhal.cluster.roster import Roster
from narwhal.errors import ConfigError, StoreError
from narwhal.model.handover import YieldAnswer, YieldOutcome

DECIDED_S = 0.5
"""The answer waits so long for the successor, so that the document that it carries names it."""


class Yielding:
    """Main loop only."""

    def __init__(self, member: Member, roster: Roster, *, gate: LeasedGate, clock: Clock) -> None:
        self._member = member
        self._roster = roster
        self._gate = gate
        self._clock = clock

    async def order(self, to: str | None) -> YieldAnswer:
        """Hands over to `to`, or to whichever standby is first. Nothing closes before it is decided."""
        if error := self._not_owner():
            return YieldAnswer(YieldOutcome.NOT_OWNER, error)
        try:
            await self._roster.look(self._clock.now())
        except ConfigError as taken:  # the next announcement ends this process
            return YieldAnswer(YieldOutcome.NOT_OWNER, str(taken))
        except StoreError:
            return YieldAnswer(YieldOutcome.NOT_OWNER, "the store does not answer: the lease stays here")
        if error := self._roster.objection(to):
            return YieldAnswer(YieldOutcome.REFUSED, error)
        if error := self._not_owner():  # it may have ended while the roster was read
            return YieldAnswer(YieldOutcome.NOT_OWNER, error)
        if not await self._member.give_back("yield", successor=to or ""):
            return YieldAnswer(
                YieldOutcome.NOT_OWNER, "the store did not confirm that the lease was released"
            )
        await self._gate.decided(DECIDED_S)
        return YieldAnswer(YieldOutcome.DONE)

    def _not_owner(self) -> str:
        now = self._clock.now()
        if self._gate.may_admit(now):
            return ""
        return f"this router does not own the fleet: {self._gate.refusal(now)}"
