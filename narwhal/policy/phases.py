"""The states of the lease machine and its moves; the reasons are in `narwhal.policy.election`."""

from __future__ import annotations

from narwhal.errors import InvariantViolation
from narwhal.model.control import RouterState

HOLDING = frozenset({RouterState.RESTORING, RouterState.OWNER, RouterState.SUSPECT})
OWNING = HOLDING | {RouterState.DRAINING}
_MOVES: dict[RouterState, frozenset[RouterState]] = {
    RouterState.STARTING: frozenset({RouterState.STANDBY, RouterState.STOPPED}),
    RouterState.STANDBY: frozenset({RouterState.CANDIDATE, RouterState.STOPPED}),
    RouterState.CANDIDATE: frozenset({RouterState.STANDBY, RouterState.ACQUIRING, RouterState.STOPPED}),
    RouterState.ACQUIRING: frozenset({RouterState.RESTORING, RouterState.STANDBY}),
    RouterState.RESTORING: frozenset(
        {RouterState.OWNER, RouterState.FENCED, RouterState.STANDBY, RouterState.DRAINING}
    ),
    RouterState.OWNER: frozenset(
        {RouterState.SUSPECT, RouterState.FENCED, RouterState.STANDBY, RouterState.DRAINING}
    ),
    RouterState.SUSPECT: frozenset(
        {RouterState.OWNER, RouterState.FENCED, RouterState.STANDBY, RouterState.DRAINING}
    ),
    RouterState.FENCED: frozenset({RouterState.STANDBY}),
    RouterState.DRAINING: frozenset({RouterState.RELEASED}),
    RouterState.RELEASED: frozenset({RouterState.STANDBY, RouterState.STOPPED}),
    RouterState.STOPPED: frozenset(),
}


class Phases:
    """Where the machine is. An illegal move raises InvariantViolation and changes nothing."""

    def __init__(self) -> None:
        self.phase = RouterState.STARTING

    def _move(self, to: RouterState) -> None:
        if to is self.phase:
            return
        if to not in _MOVES[self.phase]:
            raise InvariantViolation(f"lease machine: {self.phase} may not become {to}")
        self.phase = to
