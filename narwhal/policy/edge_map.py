"""Edges as they are: pairs of engines that KV went between, and what is known of each. Pure; decides nothing
(`edges` does)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from narwhal.model.evidence import FailureClass

PARTNERS = 2
"""Partners with whom an engine fails when it is its own fault."""

IsOut = Callable[[str], bool]
"""An ejected engine: what was seen with it tells nothing of its partners."""
Charge = tuple[str, FailureClass, int]
"""What one failed decode is held against: the consumer, the class, the consumer's row of that class."""
Row = Counter[Charge]
"""Failed decodes of one producer's KV in a row."""


# Identity is what counts: an edge is looked up, never compared.
@dataclass(slots=True, eq=False)
class Edge:
    """`failures` in a row since `failing_since`; `good_at`: the newest dispatch of a
    clean decode, -inf: none.

    `charged`: how many of them, by class and row, are held against the consumer (row: of its breaker).
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
    charged: Counter[tuple[FailureClass, int]] = field(default_factory=Counter)

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

    def charged_by(self, producer: str) -> Row:
        """What its KV has its consumers charged with."""
        row = Row()
        for edge in self.out_of(producer):
            row.update(
                {(edge.consumer, *charge): times for charge, times in edge.charged.items() if times > 0}
            )
        return row

    def acquit(self, producer: str, charges: Iterable[Charge]) -> None:
        """Its consumers are charged with these no longer."""
        for consumer, failure, row in charges:
            if (edge := self.known(producer, consumer)) is not None:
                edge.charged.pop((failure, row), None)

    def clear(self) -> None:
        for into in self._into.values():
            into.clear()

    # --- what they tell of their ends ---

    def ends_are_sound(self, edge: Edge) -> bool:
        """Both have had a clean decode with another partner, dispatched since this edge began to fail."""
        return self.producer_is_sound(edge) and self.consumer_is_sound(edge)

    def producer_is_sound(self, edge: Edge) -> bool:
        return _does_well_beside(edge, self.out_of(edge.producer))

    def consumer_is_sound(self, edge: Edge) -> bool:
        return _does_well_beside(edge, self.into(edge.consumer))

    def failing_consumers(self, producer: str, is_out: IsOut) -> list[str]:
        """Whose probes with the producer failed, sorted, where they are `PARTNERS` and it works with none."""
        edges = [e for e in self.out_of(producer) if not is_out(e.consumer)]
        return sorted(e.consumer for e in _all_bad(edges))

    def failing_producers(self, consumer: str, is_out: IsOut) -> list[str]:
        """The mirror image; a producer that fails with all its consumers tells nothing of this one."""
        edges = [e for e in self.into(consumer) if not is_out(e.producer)]
        own = [e for e in edges if not self.failing_consumers(e.producer, is_out)]
        return sorted(e.producer for e in _all_bad(own))

    def best_producer(self, consumer: str, producers: Iterable[str]) -> str:
        """Of those whose edge is not avoided the one that last did well with it; "" without any."""
        edges = {iid: self.known(iid, consumer) for iid in producers}
        return _best({iid: edge for iid, edge in edges.items() if edge is None or edge.avoided_at is None})

    def best_consumer(self, producer: str, consumers: Iterable[str]) -> str:
        """The mirror image."""
        edges = {iid: self.known(producer, iid) for iid in consumers}
        return _best({iid: edge for iid, edge in edges.items() if edge is None or edge.avoided_at is None})

    def works_with(self, consumer: str, producers: Iterable[str]) -> bool:
        """It does well with one of them, as far as is known."""
        edges = (self.known(producer, consumer) for producer in producers)
        return any(edge is not None and edge.works for edge in edges)

    def fails_without(self, consumer: str, producer: str) -> bool:
        """The consumer fails with another producer too."""
        return any(edge.failures for edge in self.into(consumer) if edge.producer != producer)

    def fails_beside(self, producer: str, consumer: str, *, is_out: IsOut) -> bool:
        """The producer fails with another consumer too, which does not fail with others."""
        edges = [e for e in self.out_of(producer) if e.consumer != consumer and not is_out(e.consumer)]
        return any(
            edge.avoided_at is not None
            or (edge.failures > 0 and not self.fails_without(edge.consumer, producer))
            for edge in edges
        )

    def witness(self, producer: str, consumers: Iterable[str]) -> str:
        """Whose failure in a probe would tell most: who last did well with another producer."""

        def well_at(consumer: str) -> float:
            others = (e.good_at for e in self.into(consumer) if e.producer != producer and e.works)
            return max(others, default=-inf)

        return max(sorted(consumers), key=well_at)


def _does_well_beside(edge: Edge, edges: Iterable[Edge]) -> bool:
    return any(e.works and e.good_at >= edge.failing_since for e in edges if e is not edge)


def _all_bad(edges: Sequence[Edge]) -> list[Edge]:
    bad = [edge for edge in edges if edge.avoided_at is not None]
    return bad if len(bad) >= PARTNERS and not any(edge.works for edge in edges) else []


def _best(edges: Mapping[str, Edge | None]) -> str:
    def well_at(iid: str) -> float:
        edge = edges[iid]
        return edge.good_at if edge is not None and edge.works else -inf

    return max(sorted(edges), key=well_at, default="")
