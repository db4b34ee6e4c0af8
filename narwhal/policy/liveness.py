"""Which pass sweeps the fleet for dead engines (failures.md section 1, stage `liveness`). Pure.

| passes since the last sweep | next pass |
| --- | --- |
| fewer than `every` - 1 | no sweep |
| `every` - 1 | sweep |
| any, begin anew (another ownership) | as after a sweep |

The first sweep comes after `every` passes: what a new owner restored is probed for its own sake.
"""

from __future__ import annotations


class SweepCadence:
    """`every`: passes from one sweep to the next, 0 = never (`recovery.liveness_every`)."""

    __slots__ = ("_every", "_since")

    def __init__(self, every: int) -> None:
        self._every = every
        self._since = 0

    def begin_anew(self) -> None:
        self._since = 0

    def next_pass(self) -> bool:
        """Counts one pass; True: this one sweeps."""
        if not self._every:
            return False
        self._since = (self._since + 1) % self._every
        return self._since == 0
