"""Edges as they are: pairs of engines that KV went between, and what is known of each. Pure; decides nothing
(`edges` does)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf


# Identity is what counts: an edge is looked up, never compared.
@dataclass(slots=True, eq=False)
class Edge:
    """`failures` in a row since `failing_since`; `good_at`: the newest clean decode, -inf: none.

    `avoided_at` is None while placement may use it. `due_at`: when its probe is to be asked, None: none
    is owed. `reason` is a sentence for people, "" at rest.
    """

    producer: str
    consumer: str
    failures: int = 0
    failing_since: float = 0.0
    good_at: float = -inf
    avoided_at: float | None = None
    due_at: float | None = None
    reason: str = ""

    @property
    def works(self) -> bool:
        """As far as is known: it was crossed well, and nothing failed since."""
        return self.good_at > -inf and not self.failures and self.avoided_at is None


class EdgeMap:
    """At most one edge a pair of configured engines, made when it is first asked for."""

    __slots__ = ("_into",)

    def __init__(self, engines: Iterable[str]) -> None:
        self._into: dict[str, dict[str, Edge]] = {iid: {} for iid in engines}

    def edge(self, producer: str, consumer: str) -> Edge | None:
        """None: not two configured engines."""
        into = self._into.get(consumer)
        if into is None:
            return None
        edge = into.get(producer)
        if edge is None and producer in self._into and producer != consumer:
            edge = into[producer] = Edge(producer, consumer)
        return edge

    def known(self, producer: str, consumer: str) -> Edge | None:
        """As `edge`, but none is made."""
        return self._into.get(consumer, {}).get(producer)

    def all(self) -> Iterator[Edge]:
        for into in self._into.values():
            yield from into.values()

    def out_of(self, producer: str) -> Iterator[Edge]:
        for into in self._into.values():
            if (edge := into.get(producer)) is not None:
                yield edge

    def into(self, consumer: str) -> Iterable[Edge]:
        return self._into.get(consumer, {}).values()

    def of(self, iid: str) -> list[Edge]:
        return [*self.out_of(iid), *self.into(iid)]

    def clear(self) -> None:
        for into in self._into.values():
            into.clear()

    # --- what they tell of their ends ---

    def ends_are_sound(self, edge: Edge) -> bool:
        """Both have had a clean decode with another partner since this edge began to fail."""
        others = (self.out_of(edge.producer), self.into(edge.consumer))
        return all(
            any(e.works and e.good_at >= edge.failing_since for e in edges if e is not edge)
            for edges in others
        )

    def fails_without(self, consumer: str, producer: str) -> bool:
        """The consumer fails with another producer too."""
        return any(edge.failures for edge in self.into(consumer) if edge.producer != producer)

    def witness(self, producer: str, consumers: Iterable[str]) -> str:
        """Whose failure in a probe would tell most: who last did well with another producer."""

        def well_at(consumer: str) -> float:
            others = (e.good_at for e in self.into(consumer) if e.producer != producer and e.works)
            return max(others, default=-inf)

        return max(sorted(consumers), key=well_at)
