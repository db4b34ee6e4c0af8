"""Which candidates of a leg are to be preferred, whatever they cost (failures.md section 9). Pure.

| leg | not preferred | used when |
| --- | --- | --- |
| prefill | a producer whose every consumer is behind an avoided edge or asked for relief | no other is left |
| decode | a consumer behind an avoided edge | neither another consumer nor the producer itself can serve |
| decode | where edges are avoided, a consumer that asked for relief | nor the producer itself can serve |
| both | an engine that asked for relief (back-pressure) | no other is left |

Relief never funnels: a producer that lost one consumer to a broken edge does not send everything to the one
that is left and asked for less, as long as another pair, or the producer by itself, can serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from narwhal.errors import InvariantViolation
from narwhal.policy.back_pressure import BackPressure
from narwhal.policy.cost import EngineLoad
from narwhal.policy.edges import Edges

Loads = tuple[EngineLoad, ...]
_NONE: frozenset[str] = frozenset()


class Preference:
    """Reads edges and back-pressure; owns nothing. `idle`: nothing to prefer, the usual case."""

    __slots__ = ("_edges", "_pressure", "idle")

    def __init__(self, edges: Edges, pressure: BackPressure) -> None:
        self._edges = edges
        self._pressure = pressure
        # Kept, not computed: it is asked for every leg, and bad news are rare.
        self.idle = True

    def look(self) -> None:
        """After any change of edges or back-pressure."""
        self.idle = not self._edges.avoided and self._pressure.idle

    def check_invariants(self) -> None:
        """Raises InvariantViolation where it would be passed over. Relief that ends is seen late."""
        if self.idle and (self._edges.avoided or not self._pressure.idle):
            raise InvariantViolation("preference: idle, and there is something to prefer")

    def producers(self, candidates: Loads, now: float, *, consumers: Iterable[EngineLoad]) -> Loads:
        """Of the `candidates` for a prefill; `consumers`: those for the decode behind it."""
        names = frozenset(load.iid for load in consumers)
        relieved = self._relieved(now)
        stuck = {iid for iid, gone in self._edges.avoided.items() if _all_in(names - {iid}, gone | relieved)}
        return without(without(candidates, stuck), relieved)

    def consumers(self, candidates: Loads, now: float, *, producer: str, local: Loads) -> Loads:
        """Of the `candidates` for a decode of the `producer`'s KV. `local`: the producer itself, if it may
        take the leg, else nobody."""
        relieved = self._relieved(now)
        avoided = self._edges.avoided.get(producer, _NONE)
        if not avoided:
            return without(candidates, relieved)
        clear = _less(candidates, avoided)
        return _less(clear, relieved) or _less(local, relieved) or clear or local or candidates

    def _relieved(self, now: float) -> Set[str]:
        relieved = self._pressure.relieved(now).keys()
        self.look()
        return relieved


def without(candidates: Loads, avoid: Set[str]) -> Loads:
    """The candidates less the ones to avoid, or all of them when no other is left."""
    if not avoid:
        return candidates
    return _less(candidates, avoid) or candidates


def _less(candidates: Loads, avoid: Set[str]) -> Loads:
    return tuple([load for load in candidates if load.iid not in avoid])


def _all_in(names: frozenset[str], avoided: frozenset[str]) -> bool:
    return bool(names) and names <= avoided
