"""Whether a failed transfer is the pair's, the producer's or the consumer's own fault, and what then. Pure.

| seen | then |
| --- | --- |
| an edge at `eject_after`, both ends do well with others | avoided and probed, nobody is charged |
| an edge fails for good, its consumer does well with others, its producer not | the producer is accused |
| a producer fails with two consumers | it is held and probed with one that pulls from it |
| a probe across an edge was bad | the edge is avoided, the consumer is probed across another producer |
| the same across two producers, and it works with no third; across the only one | the consumer is ejected |
| a probe of a producer was bad: no consumer could pull | the edge is avoided, it is probed with another one |
| the same with one more that fails with it and well without; with the only one | the producer is ejected |
| probes of its edges were bad with two producers, it works with none | held, probed across one |

Accused: it is probed with another consumer; with the same one, and held, where there is no other. A partner
that says "later" and nothing else is asked last, for it will tell nothing yet, but while it is in nobody is
convicted by the only other one: a producer is held meanwhile. A consumer with whom the probe told nothing
makes way for the next.
A producer that fails with all its consumers tells nothing of any of them, and an engine that is out, or was
another process, nothing of its partners: neither what failed with it before nor what fails yet. Counting is
`edges`' matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from narwhal.model.effect import NOTHING, Effect, Effects, ProbeKind, ProbeWanted, Told, tell
from narwhal.model.engine import Leg
from narwhal.model.evidence import EdgeProbed, InferenceProbed, LegFailed, ProbeOutcome
from narwhal.policy.edge_map import PARTNERS, Edge, Row
from narwhal.policy.edges import Edges, Suspect, is_failed_transfer
from narwhal.policy.judgement import Judgement
from narwhal.policy.poison import Counted
from narwhal.policy.quarantine import OfKv


class Pairs:
    """Between `blame` and the edges. `edges` is for placement to read; `taken_back` is told what counts no
    longer against a consumer."""

    __slots__ = ("_busy", "_judgement", "edges", "taken_back")

    def __init__(self, judgement: Judgement, edges: Edges, *, busy: Callable[[float], Set[str]]) -> None:
        """`busy`: who says "later" and nothing else now: a probe with one of them would tell nothing."""
        self.edges = edges
        self._judgement = judgement
        self._busy = busy
        judgement.standings.checks.stand_in = self._next_consumer
        self.taken_back: Callable[[Counted, int], None] = lambda counted, times: None

    # --- legs ------------------------------------------------------------------------------------

    def failed(self, evidence: LegFailed, now: float) -> Effects:
        iid, failure, peer = evidence.iid, evidence.failure, evidence.peer
        if self.excuses(evidence):
            return NOTHING
        if self._is_out(iid) or not is_failed_transfer(evidence):
            return self._judgement.step(evidence, now)
        row = self._judgement.row(iid, failure)
        verdict = self.edges.failed(peer, iid, failure=failure, now=now, row=row)
        if isinstance(verdict, Edge):
            return self.shown((verdict,), now)
        if isinstance(verdict, Suspect):
            cleared = (iid, failure, row) in verdict.cleared
            counted = NOTHING if cleared else self._judgement.step(evidence, now)
            return (*counted, *self._suspected(verdict, evidence, now=now))
        counted = self._judgement.step(evidence, now)
        return (*counted, *self._accused(self.edges.map.known(peer, iid), now))

    def excuses(self, evidence: LegFailed) -> bool:
        """It may have failed for the KV of an engine that is out: held against nobody."""
        return self._is_out(evidence.peer) and is_failed_transfer(evidence)

    def _suspected(self, suspect: Suspect, evidence: LegFailed, *, now: float) -> Effects:
        """A producer. This failure was never held against its consumer, the others are taken back."""
        effects: list[Effect] = []
        for (iid, failure, row), times in suspect.cleared.items():
            own = (iid, failure, row) == (
                evidence.iid,
                evidence.failure,
                self._judgement.row(evidence.iid, evidence.failure),
            )
            effects += self.pardon((iid, failure, suspect.iid, row), times - own)
        effects += self._judgement.suspect(suspect.iid, suspect.reason, consumer=suspect.consumer, now=now)
        return tuple(effects)

    # --- probes ----------------------------------------------------------------------------------

    def across_failed(self, evidence: InferenceProbed, now: float) -> Effects:
        """Across which producers it fails tells engine from edge: with two it is the engine's own."""
        iid, peer, checks = evidence.iid, evidence.peer, self._judgement.standings.checks
        edge = self.edges.probed(peer, iid, outcome=ProbeOutcome.BAD, now=now)
        told = self._avoided((edge,) if edge is not None else ())
        failed = [one for one in checks.failed_across(iid, peer) if not self._is_out(one)]
        fail_anyway = [one for one in failed if self.edges.map.failing_consumers(one, self._is_out)]
        accused = self._blamed(self.edges.map.known(peer, iid), now) if peer in fail_anyway else NOTHING
        # Where it works with a third, the two may be at fault, and that one's probe tells.
        others = self._live(Leg.PREFILL, {iid, *failed})
        with_two = len(failed) - len(fail_anyway) >= PARTNERS and not self.edges.map.works_with(iid, others)
        own = with_two or self.edges.map.failing_producers(iid, self._is_out)
        another = self._best_producer(iid, {iid, *failed}, now=now)
        reason = f"a probe across {peer} failed, which may be the pair's fault"
        if another and not own:
            asked: Effects = checks.ask_from(iid, reason=reason, producers=(another, peer), now=now)
        elif accused and not own:
            asked = checks.ask_alone(iid, reason=reason, now=now)
        else:
            asked = self._judgement.step(evidence, now)
        return (*told, *accused, *asked)

    def pull_failed(self, evidence: InferenceProbed, now: float) -> Effects:
        """As `across_failed`, of a suspect producer: with two consumers, or the only one, it is its own."""
        producer, consumer = evidence.iid, evidence.consumer
        another = self._best_consumer(producer, {producer, consumer}, now=now)
        if not another or self.edges.map.fails_beside(producer, consumer, is_out=self._is_out):
            return self._judgement.step(evidence, now)
        edge = self.edges.probed(producer, consumer, outcome=ProbeOutcome.BAD, now=now)
        told = self._avoided((edge,) if edge is not None else ())
        reason = f"{consumer} could not pull its KV, which may be the pair's fault"
        checks = self._judgement.standings.checks
        return (*told, *checks.ask_with(producer, reason=reason, consumer=another, now=now))

    def told_nothing(self, evidence: InferenceProbed, now: float) -> None:
        """Of a suspect producer, as where its consumer is busy: the next probe is with another one."""
        other = self._next_consumer(evidence.iid, now, but=evidence.consumer)
        if other:
            self._judgement.standings.checks.across(evidence.iid, other)

    def _next_consumer(self, producer: str, now: float, *, but: str = "") -> str:
        """One whose edge is avoided too, where there is no other; "" without any."""
        not_these = {producer, but}
        best, live = self._best_consumer(producer, not_these, now=now), self._live(Leg.DECODE, not_these)
        return best or (self.edges.map.witness(producer, live) if live else "")

    def lost_its_partner(self, evidence: InferenceProbed) -> bool:
        """Whoever it was made with is out by now: what it showed may be that one's doing."""
        return any(self._is_out(one) for one in (evidence.peer, evidence.consumer) if one)

    def _is_out(self, iid: str) -> bool:
        return self._judgement.standings.is_out(iid)

    def _live(self, leg: Leg, but: Set[str]) -> list[str]:
        """Who may take that leg of a probe, sorted."""
        able = self._judgement.standings.able.get(leg, frozenset())
        return sorted(iid for iid in able - but if not self._is_out(iid))

    def _best_producer(self, consumer: str, but: Set[str], *, now: float) -> str:
        """The best one to probe that consumer with, a busy one where there is no other; "" without any."""
        live, busy, best = self._live(Leg.PREFILL, but), self._busy(now), self.edges.map.best_producer
        return best(consumer, [iid for iid in live if iid not in busy]) or best(consumer, live)

    def _best_consumer(self, producer: str, but: Set[str], *, now: float) -> str:
        """The mirror image."""
        live, busy, best = self._live(Leg.DECODE, but), self._busy(now), self.edges.map.best_consumer
        return best(producer, [iid for iid in live if iid not in busy]) or best(producer, live)

    def crossed_well(self, evidence: InferenceProbed, now: float) -> Effects:
        """What that shows of other edges that share an end, too."""
        ends = (evidence.peer, evidence.iid) if evidence.peer else (evidence.iid, evidence.consumer)
        edge = self.edges.probed(*ends, outcome=ProbeOutcome.GOOD, now=now)
        told = (_edge_told("edge_restored", edge),) if edge is not None else NOTHING
        shown = self.shown(self.edges.ripened_by(*ends, now=now), now)
        accused = [effect for one in self.edges.map.into(ends[1]) for effect in self._accused(one, now)]
        return (*told, *shown, *accused)

    def edge_probed(self, evidence: EdgeProbed, now: float) -> Effects:
        outcome = evidence.outcome
        if outcome is ProbeOutcome.BAD and (
            self._is_out(evidence.producer) or self._is_out(evidence.consumer)
        ):
            outcome = ProbeOutcome.INCONCLUSIVE
        edge = self.edges.probed(evidence.producer, evidence.consumer, outcome=outcome, now=now)
        if outcome is ProbeOutcome.GOOD:
            return (_edge_told("edge_restored", edge),) if edge is not None else NOTHING
        told = self._avoided((edge,) if edge is not None else ())
        if outcome is ProbeOutcome.INCONCLUSIVE:
            return told
        return (*told, *self._blamed(self.edges.map.known(evidence.producer, evidence.consumer), now))

    def _blamed(self, edge: Edge | None, now: float) -> Effects:
        """After a bad probe across it, the first one or one of many: whose own fault that shows."""
        suspect = self.edges.culprit(edge, self._is_out) if edge is not None else None
        if suspect is None:
            return self._accused(edge, now)
        iid, reason = suspect.iid, suspect.reason
        if suspect.producer:
            standings = self._judgement.standings
            if self._is_out(iid):
                return NOTHING
            held = standings.hold(iid, reason, now=now)
            across = (suspect.producer,)
            asked = standings.checks.ask(ProbeKind.INFERENCE, iid, reason=reason, producers=across, now=now)
            return (*held, *asked)
        return self._judgement.suspect(iid, reason, consumer=suspect.consumer, now=now)

    def _accused(self, edge: Edge | None, now: float) -> Effects:
        """The producer's own fault, if it fails with another consumer too. Where there is no other, the same
        one decides, which does well with others; until then the producer is held, as it is while all others
        ask for relief: it is of no use to anybody then, and no answer may come for long."""
        if edge is None or not self.edges.accuses(edge) or self._is_out(edge.consumer):
            return NOTHING
        producer, consumer = edge.producer, edge.consumer
        other = self._best_consumer(producer, {producer, consumer}, now=now)
        hold = not other or other in self._busy(now)
        reason = f"its KV handoffs fail on {consumer}, which does well with others"
        return self._judgement.suspect(producer, reason, hold=hold, consumer=other or consumer, now=now)

    # --- edges -----------------------------------------------------------------------------------

    def restarted(self, iid: str, now: float) -> Effects:
        brought = self.edges.restarted(iid, now)
        told = tell("peer_restarted", iid, reason="it is another process than before")
        return (told, *self._given_back(iid, brought, now=now), *self.probes_due(now))

    def ejected(self, iid: str, now: float) -> Effects:
        return self._given_back(iid, self.edges.ejected(iid), now=now)

    def _given_back(self, producer: str, brought: Row, *, now: float) -> Effects:
        """What its KV had its consumers charged with, which is not taken back once more for a request. Who is
        held and has no other streak is looked at at once: its probe may be half a minute away."""
        effects: list[Effect] = []
        for (consumer, failure, row), times in brought.items():
            effects += self.pardon((consumer, failure, producer, row), times)
        standings, suspects = self._judgement.standings, self._judgement.suspects()
        for consumer in sorted({consumer for consumer, *_ in brought} - suspects):
            if standings.holding.is_held(consumer):
                effects += standings.checks.again(ProbeKind.INFERENCE, consumer, now=now)
        return tuple(effects)

    def probes_due(self, now: float) -> Effects:
        """An edge whose end is out waits: a probe could tell nothing of the pair."""
        is_out = self._is_out
        return tuple(
            ProbeWanted(ProbeKind.EDGE, edge.consumer, edge.producer)
            for edge in self.edges.due(now)
            if not is_out(edge.consumer) and not is_out(edge.producer)
        )

    def shown(self, edges: Iterable[Edge], now: float) -> Effects:
        """Edges that are avoided from now on, or whose producer may be at fault."""
        effects: list[Effect] = []
        for edge in edges:
            if self.edges.accuses(edge):
                effects += self._accused(edge, now)
                continue
            for (failure, row), times in self.edges.pardoned(edge).items():
                effects += self.pardon((edge.consumer, failure, edge.producer, row), times)
            effects += self._avoided((edge,))
        return (*effects, *self.probes_due(now))

    def pardon(self, counted: Counted, times: int) -> Effects:
        """So many failed decodes between two engines were not the consumer's own."""
        iid, failure, peer, row = counted
        self.taken_back(counted, times)
        self._judgement.pardon(iid, failure, times=times, row=row)
        return self._judgement.take_back(iid, OfKv(peer, failure))

    @staticmethod
    def _avoided(edges: Iterable[Edge]) -> Effects:
        return tuple(_edge_told("edge_avoided", edge) for edge in edges)


def _edge_told(kind: str, edge: Edge) -> Told:
    """An edge at rest has no reason: its probe was good."""
    reason = edge.reason or "a probe across it was good"
    return tell(kind, edge.consumer, reason=reason, producer=edge.producer)
