"""What role control decided, for people to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from narwhal.model.engine import Role


class DecisionWord(StrEnum):
    KEEP = "keep"
    MOVE = "move"
    PROPOSE = "propose"
    """A move that `controller.advisory` keeps from being made."""
    REFUSE = "refuse"
    """A move is wanted and no engine may make it."""


@dataclass(frozen=True, slots=True)
class RoleDecision:
    """`rule` names the rule that decided, `numbers` what it compared. `at`: the clock's `now`.

    `iid` and `role` (the new one) name the move, "" and None where there is none.
    """

    word: DecisionWord
    rule: str
    reason: str
    at: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    iid: str = ""
    role: Role | None = None

    def repeats(self, other: RoleDecision) -> bool:
        """Tells nothing new: a move always does; a proposal is the same whichever engine it names."""
        if self.word is DecisionWord.MOVE:
            return False
        return (self.word, self.role, self.reason) == (other.word, other.role, other.reason)


@dataclass(frozen=True, slots=True)
class RoleControlView:
    """The last decision, and the newest moves and refusals, oldest first.

    `last` is None before the first pass as owner. `flips` are moves made or, with `controller.advisory`,
    proposed. Every `at` is Unix seconds here.
    """

    last: RoleDecision | None = None
    flips: tuple[RoleDecision, ...] = ()
    refused: tuple[RoleDecision, ...] = ()
