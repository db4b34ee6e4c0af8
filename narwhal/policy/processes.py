"""Which process an engine is, as far as its answers tell (failures.md section 9, "A restarted peer"). Pure.

| engine | event | next |
| --- | --- | --- |
| unknown | a process start, an ID in a KV handoff | known by it |
| known | the same start, an ID known already | known |
| known | another process start | a new process, known by that start alone |
| known by IDs | an ID unknown so far | a new process, known by that ID too |

Data-parallel ranks behind one URL have an ID each: what is known is a set, and a rank that shows itself
late costs a few probes, no more. Two signs of one restart are two restarts; the second one's probes are good.
"""

from __future__ import annotations

from narwhal.errors import InvariantViolation
from narwhal.model.identity import SAME_START_S

MOST_IDS = 64
"""IDs remembered of one engine."""


class Processes:
    """Process starts (Unix seconds, as `/metrics` tells them) and KV IDs by engine."""

    __slots__ = ("_ids", "_starts")

    def __init__(self) -> None:
        self._ids: dict[str, dict[str, None]] = {}
        self._starts: dict[str, float] = {}

    def named(self, iid: str, remote_engine_id: str) -> bool:
        """A KV handoff names its producer so. True: that is another process than before."""
        known = self._ids.get(iid)
        if known is None:
            self._ids[iid] = {remote_engine_id: None}
            return False
        if remote_engine_id in known:
            return False
        if len(known) >= MOST_IDS:
            del known[next(iter(known))]
        known[remote_engine_id] = None
        return True

    def started(self, iid: str, process_start: float) -> bool:
        """The process start was read. True: that is another process than before."""
        before = self._starts.get(iid)
        self._starts[iid] = process_start
        if before is None or abs(before - process_start) <= SAME_START_S:
            return False
        self._ids.pop(iid, None)
        return True

    def check_invariants(self) -> None:
        """Raises InvariantViolation where memory is not bounded."""
        if any(len(known) > MOST_IDS for known in self._ids.values()):
            raise InvariantViolation("processes: too many IDs of one engine")
