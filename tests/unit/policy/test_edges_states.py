"""Edges under any order of evidence: avoided only for cause, never for ever, always asked again."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from narwhal.model.evidence import FailureClass, ProbeOutcome
from narwhal.policy.edge_map import Edge
from narwhal.policy.edges import Edges, Suspect
from narwhal.policy.pace import Pace

PRODUCERS, CONSUMERS = ("p0", "p1"), ("d0", "d1", "p1")
EJECT_AFTER, EVERY_S = 2, 10.0

producers, consumers = st.sampled_from(PRODUCERS), st.sampled_from(CONSUMERS)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        engines = sorted({*PRODUCERS, *CONSUMERS})
        self.edges = Edges(
            engines, eject_after=EJECT_AFTER, pace=Pace(10, 1.0), aside=lambda iid: iid in self.aside
        )
        self.aside: set[str] = set()
        """Who is out or held."""
        self.told: dict[str, Counter[str]] = {iid: Counter() for iid in engines}
        """Producer to consumers to what they failed since its row began and they last began anew."""
        self.now = 100.0
        self.row: dict[tuple[str, str], int] = {}
        self.cause: set[tuple[str, str]] = set()
        """Pairs with failures enough in a row, or a bad probe, since they last proved well."""
        self.asked_at: dict[tuple[str, str], float] = {}

    @rule(producer=producers, consumer=consumers)
    def crossed(self, producer: str, consumer: str) -> None:
        self.row[producer, consumer] = 0
        if producer != consumer:
            self.told[producer].clear()
        if consumer not in self.edges.avoided.get(producer, ()):
            self.cause.discard((producer, consumer))
        for edge in self.edges.crossed(producer, consumer, now=self.now):
            assert (edge.producer, edge.consumer) != (producer, consumer)

    @rule(producer=producers, consumer=consumers, failure=st.sampled_from([FailureClass.STREAM]))
    def failed(self, producer: str, consumer: str, failure: FailureClass) -> None:
        row = self.row[producer, consumer] = self.row.get((producer, consumer), 0) + 1
        if row >= EJECT_AFTER:
            self.cause.add((producer, consumer))
        self.told[producer][consumer] += producer != consumer
        verdict = self.edges.failed(producer, consumer, failure=failure, now=self.now)
        told = {iid: n for iid, n in self.told[producer].items() if n and iid not in self.aside}
        if isinstance(verdict, Edge):
            assert row >= EJECT_AFTER
        elif isinstance(verdict, Suspect):
            assert verdict.iid == producer
            assert all(count > 0 for count in verdict.cleared.values())
            assert len(told) >= 2, "one consumer's failures, the others' are excused"
            assert sum(told.values()) >= EJECT_AFTER
            assert not {iid for iid, *_ in verdict.cleared} & self.aside
            self.told[producer].clear()

    @rule(producer=producers, consumer=consumers, outcome=st.sampled_from(list(ProbeOutcome)))
    def probed(self, producer: str, consumer: str, outcome: ProbeOutcome) -> None:
        edge = self.edges.probed(producer, consumer, outcome=outcome, now=self.now)
        self.asked_at[producer, consumer] = self.now
        avoided = consumer in self.edges.avoided.get(producer, ())
        if outcome is ProbeOutcome.GOOD:
            assert not avoided
            self.row[producer, consumer] = 0
            if producer != consumer:
                self.told[producer].clear()
            self.cause.discard((producer, consumer))
        elif outcome is ProbeOutcome.BAD and producer != consumer:
            assert avoided
            self.cause.add((producer, consumer))
        if edge is not None:
            self.edges.culprit(edge, lambda iid: False)

    @rule(iid=st.sampled_from(sorted({*PRODUCERS, *CONSUMERS})))
    def restarted(self, iid: str) -> None:
        before = self.edges.avoided
        self.edges.restarted(iid, self.now)
        assert self.edges.avoided == before
        self.begin_anew(iid)

    @rule(iid=st.sampled_from(sorted({*PRODUCERS, *CONSUMERS})))
    def readmitted(self, iid: str) -> None:
        self.edges.readmitted(iid, self.now)
        self.begin_anew(iid)

    @rule(iid=st.sampled_from(sorted({*PRODUCERS, *CONSUMERS})))
    def is_ejected(self, iid: str) -> None:
        self.edges.ejected(iid)
        assert not self.edges.ejected(iid), "told twice"
        self.begin_anew(iid)

    @rule(iid=st.sampled_from(sorted({*PRODUCERS, *CONSUMERS})))
    def is_set_aside_or_acquitted(self, iid: str) -> None:
        self.aside ^= {iid}

    def begin_anew(self, iid: str) -> None:
        self.told[iid].clear()
        for consumers in self.told.values():
            del consumers[iid]
        for pair in tuple(self.row):
            if iid in pair:
                self.row[pair] = 0

    @rule(by_s=st.floats(0.0, 25.0))
    def waits(self, by_s: float) -> None:
        self.now += by_s

    @rule()
    def ticks(self) -> None:
        asked = {(edge.producer, edge.consumer) for edge in self.edges.due(self.now)}
        self.asked_at |= dict.fromkeys(asked, self.now)
        for producer, names in self.edges.avoided.items():
            for consumer in names:
                assert self.now - self.asked_at.get((producer, consumer), self.now) <= EVERY_S

    @rule()
    def travels(self) -> None:
        avoided, told = self.edges.avoided, self.edges.export(self.now)
        self.edges.restore(told, self.now)
        assert self.edges.avoided == avoided
        self.row.clear()
        for consumers in self.told.values():
            consumers.clear()
        self.asked_at.clear()

    @invariant()
    def sound(self) -> None:
        self.edges.check_invariants()
        for producer, names in self.edges.avoided.items():
            assert names
            for consumer in names:
                assert (producer, consumer) in self.cause, "avoided without cause"


TestAnyOrder = AnyOrder.TestCase
