"""Pairs of engines between which KV goes, and whose fault a failed transfer is (failures.md section 9). Pure.

One edge per (producer, consumer). "Sound with others" is an end that since the edge's first failure in the
row has had a decode across another edge that does not fail now: one that was dispatched since.

| edge | event | next |
| --- | --- | --- |
| quiet | a decode across it reached its clean end | quiet |
| quiet, failing n | a decode across it failed | failing n + 1 |
| failing n | a decode across it reached its clean end | quiet |
| failing `eject_after` or more | both ends are sound with others | avoided |
| any | its probe was good | quiet |
| any | its probe was bad | avoided |
| any that was crossed | one end is another process now | carries traffic, owes a probe at once |
| avoided | at its pace; its probe told nothing | avoided, owes a probe |

| producer | event | verdict |
| --- | --- | --- |
| failing | `eject_after` failed decodes in a row, with two consumers or more | its own fault |
| any | an edge failed so often or its probe was bad; the consumer is sound with others, it is not | accused |
| any | bad probes with two consumers or more, and it works with none | its own fault |

| consumer | event | verdict |
| --- | --- | --- |
| any | bad probes with two producers or more, and it works with none | its own fault |

| end | event | then |
| --- | --- | --- |
| any | it is ejected or readmitted, or is another process | nothing that failed with it counts any longer |
| consumer | it is out, or held | what it failed counts against no producer, until a probe acquits it |

Accused: it is to be probed with another consumer, or with the same one where there is no other.
A consumer's failed decodes in a row, whatever their producers, are counted by the breaker and by `leg_runs`.
Not counted here: a decode that never reached its engine, back-pressure, silence behind the first token (the
KV had come).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from narwhal.errors import InvariantViolation
from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegFailed, ProbeOutcome
from narwhal.model.numbers import seconds
from narwhal.model.pair_view import EdgeView
from narwhal.policy.edge_map import Charge, Edge, EdgeMap, IsOut, Row
from narwhal.policy.kv_rows import KvRows
from narwhal.policy.pace import Pace

_TRANSFER = frozenset({FailureClass.STREAM, FailureClass.INFERENCE_STATUS})
_BEHIND_FIRST_TOKEN = frozenset({"stream:silence"})
_TRAVELS = ("producer", "consumer", "reason", "age_s")
_NONE: frozenset[str] = frozenset()


def is_about_transfer(failure: FailureClass, way: str) -> bool:
    """May a decode that failed so have failed for its KV."""
    return failure in _TRANSFER and way not in _BEHIND_FIRST_TOKEN


def is_failed_transfer(evidence: LegFailed) -> bool:
    """It pulled KV, and may have failed for it."""
    is_remote = evidence.leg is Leg.DECODE and evidence.peer not in ("", evidence.iid)
    return is_remote and is_about_transfer(evidence.failure, evidence.way)


@dataclass(frozen=True, slots=True)
class Suspect:
    """An engine whose fault it is. `cleared`: how many failures of which charge are therefore
    not the consumers' own. Of its probe: `consumer` is to pull from it, where it is a producer; `producer` is
    whose KV it is to pull, where it is a consumer."""

    iid: str
    reason: str
    cleared: Mapping[Charge, int]
    consumer: str = ""
    producer: str = ""


_UNTOLD = "avoided by the owner before"


class Edges:
    """Judges edges. `avoided` maps producers to the consumers that placement avoids for them; empty as a
    rule. `map` is for reading."""

    __slots__ = ("_eject_after", "_owing", "_pace", "_ripe", "_rows", "avoided", "fails_elsewhere", "map")

    def __init__(self, engines: Iterable[str], *, eject_after: int, pace: Pace, aside: IsOut) -> None:
        """`pace`: from one probe of an edge to the next. `aside`: who is out or held."""
        self.map = EdgeMap(engines)
        self._eject_after = eject_after
        self._pace = pace
        self._rows = KvRows(eject_after=eject_after, aside=aside)
        self.fails_elsewhere = self._rows.fails_elsewhere
        self._ripe: dict[Edge, None] = {}  # Failures enough, while an end is not sound with others.
        self._owing: dict[Edge, None] = {}
        self.avoided: Mapping[str, frozenset[str]] = {}

    # --- evidence of legs ------------------------------------------------------------------------

    def crossed(self, producer: str, consumer: str, *, now: float) -> tuple[Edge, ...]:
        """A decode dispatched at `now` ended well since; edges avoided now, or their producer is accused."""
        edge = self.map.edge(producer, consumer)
        if edge is None:
            return ()
        edge.good_at = max(edge.good_at, now)
        if edge.failures:
            self._forget_failures(edge)
        if producer in self._rows.failing:
            self._rows.end(producer)
        return self._ripened(now, beside=edge) if self._ripe else ()

    def failed(
        self, producer: str, consumer: str, *, failure: FailureClass, now: float, row: int = 0
    ) -> Suspect | Edge | None:
        """A decode failed in a way that may be its transfer's: whose fault that shows, None: nobody's yet.

        `row`: of the consumer's failures of that class, to which it counts.
        An edge that is returned is avoided from now on, and this failure nobody else's.
        """
        edge = self.map.edge(producer, consumer)
        if edge is None:
            return None
        if not edge.failures:
            edge.failing_since = now
        edge.failures += 1
        edge.charged[failure, row] += 1
        if edge.failures >= self._eject_after and edge.avoided_at is None:
            self._ripe[edge] = None
            if self._is_the_pairs(edge, now):
                edge.charged[failure, row] -= 1
                return edge
        told = self._rows.failed(producer, (consumer, failure, row))
        return self._suspect(producer, told) if told is not None else None

    def take_back(self, producer: str, consumer: str, *, failure: FailureClass, row: int = 0) -> None:
        """One failure was the request's. Without one: nothing happens."""
        edge = self.map.known(producer, consumer)
        if edge is not None and edge.failures and edge.charged[failure, row] > 0:
            edge.charged[failure, row] -= 1
            edge.failures -= 1
            if edge.failures < self._eject_after:
                self._ripe.pop(edge, None)
        self._rows.less(producer, Row({(consumer, failure, row): 1}))

    def pardoned(self, edge: Edge) -> Mapping[tuple[FailureClass, int], int]:
        """It is the pair's matter: what it added to others is taken back, from its producer's row here."""
        charged, edge.charged = edge.charged, Counter()
        self._rows.less(edge.producer, Row({(edge.consumer, *key): n for key, n in charged.items()}))
        return charged

    def accuses(self, edge: Edge | None) -> bool:
        """It fails for good, and its producer is left to blame: the consumer does well with others, and the
        producer has not since."""
        if edge is None or (edge.avoided_at is None and edge not in self._ripe):
            return False
        return self.map.consumer_is_sound(edge) and not self.map.producer_is_sound(edge)

    def _ripened(self, now: float, *, beside: Edge) -> tuple[Edge, ...]:
        """Ripe edges that are now known to be the pair's or the producer's matter: only one that shares an
        end with `beside` can be."""
        ends = (beside.producer, beside.consumer)
        near = [edge for edge in self._ripe if edge.producer == ends[0] or edge.consumer == ends[1]]
        return tuple(edge for edge in near if self._is_the_pairs(edge, now) or self.accuses(edge))

    def _is_the_pairs(self, edge: Edge, now: float) -> bool:
        if not self.map.ends_are_sound(edge):
            return False
        reason = f"{edge.failures} failed decodes in a row, both ends do well with others"
        self._avoid(edge, reason, now=now, due_at=now)
        return True

    def _suspect(self, producer: str, row: Row) -> Suspect:
        consumers = sorted({name for name, *_ in row})
        own = {key: count for key, count in row.items() if not self.map.fails_without(key[0], producer)}
        self.map.acquit(producer, own)
        reason = f"{row.total()} decodes in a row of its KV handoffs failed, on {', '.join(consumers)}"
        return Suspect(producer, reason, own, self.map.witness(producer, consumers))

    # --- evidence of probes ----------------------------------------------------------------------

    def probed(self, producer: str, consumer: str, *, outcome: ProbeOutcome, now: float) -> Edge | None:
        """A probe crossed the edge, for whose sake ever. The edge, if it came to be avoided or ceased to."""
        edge = self.map.edge(producer, consumer)
        if edge is None:
            return None
        if outcome is ProbeOutcome.GOOD:
            return self._prove(edge, now)
        if outcome is ProbeOutcome.BAD:
            new = edge.avoided_at is None
            reason = edge.reason or "a probe across it failed"
            self._avoid(edge, reason, now=now, due_at=self._pace.after(now))
            return edge if new else None
        if edge.due_at is not None:
            edge.due_at = self._pace.after(now)
        return None

    def ripened_by(self, producer: str, consumer: str, *, now: float) -> tuple[Edge, ...]:
        """As `crossed`, after a good probe across that edge."""
        edge = self.map.known(producer, consumer)
        return self._ripened(now, beside=edge) if edge is not None and self._ripe else ()

    def culprit(self, edge: Edge, is_out: IsOut) -> Suspect | None:
        """After a bad probe of `edge`: the end that fails with two partners or more and works with none."""
        consumers = self.map.failing_consumers(edge.producer, is_out)
        if consumers:
            reason = f"probes of its KV handoffs failed on {', '.join(consumers)}"
            return Suspect(edge.producer, reason, {}, self.map.witness(edge.producer, consumers))
        producers = self.map.failing_producers(edge.consumer, is_out)
        if producers:
            reason = f"probes of KV handoffs from {', '.join(producers)} failed on it"
            return Suspect(edge.consumer, reason, {}, producer=edge.producer)
        return None

    def due(self, now: float) -> tuple[Edge, ...]:
        """Edges whose probe is to be asked at `now`, each due again after the pause: an answer that never
        comes delays, it loses nothing."""
        if not self._owing:
            return ()
        due = tuple(edge for edge in self._owing if edge.due_at is not None and edge.due_at <= now)
        for edge in due:
            edge.due_at = self._pace.after(now)
        return due

    # --- who goes, who comes ---------------------------------------------------------------------

    def ejected(self, iid: str) -> Row:
        """It is convicted: nothing that failed with it counts against its partners. What its KV had its
        consumers charged with, to be taken back there. What is avoided stays so."""
        return self._begin_anew(iid)

    def restarted(self, iid: str, now: float) -> Row:
        """The engine is a new process: every edge that knew the old one owes a probe at once. What the KV of
        the old one had its consumers charged with, as in `ejected`."""
        edges = self.map.of(iid)
        known = [edge for edge in edges if edge.good_at > -inf or edge.failures or edge in self._owing]
        brought = self._begin_anew(iid)
        for edge in known:
            edge.good_at = -inf
            edge.due_at = now
            edge.reason = edge.reason or f"{iid} is a new process"
            self._owing[edge] = None
        return brought

    def readmitted(self, iid: str, now: float) -> None:
        """What failed with it was of the time before; what is avoided is probed at once."""
        self._begin_anew(iid)
        for edge in self.map.of(iid):
            if edge in self._owing:
                edge.due_at = now

    def _begin_anew(self, iid: str) -> Row:
        """No failure with it is left: of its KV, which are returned, and of what it pulled from others."""
        brought = self.map.charged_by(iid)
        self._rows.forget(iid)
        for edge in self.map.of(iid):
            self._forget_failures(edge)
        return brought

    # --- inside ----------------------------------------------------------------------------------

    def _avoid(self, edge: Edge, reason: str, *, now: float, due_at: float) -> None:
        self._ripe.pop(edge, None)
        self._owing[edge] = None
        edge.due_at, edge.reason = due_at, reason
        if edge.avoided_at is None:
            edge.avoided_at = now
            edge.failing_since = edge.failing_since if edge.failures else now
            consumers = self.avoided.get(edge.producer, _NONE) | {edge.consumer}
            self.avoided = {**self.avoided, edge.producer: consumers}

    def _prove(self, edge: Edge, now: float) -> Edge | None:
        """A good probe: the edge is as if nothing had been. The edge, if it was avoided."""
        self._forget_failures(edge)
        self._rows.end(edge.producer)
        self._owing.pop(edge, None)
        edge.good_at, edge.due_at, edge.reason = now, None, ""
        if edge.avoided_at is None:
            return None
        edge.avoided_at = None
        consumers = self.avoided[edge.producer] - {edge.consumer}
        rest = {iid: names for iid, names in self.avoided.items() if iid != edge.producer}
        self.avoided = {**rest, edge.producer: consumers} if consumers else rest
        return edge

    def _forget_failures(self, edge: Edge) -> None:
        edge.failures = 0
        edge.charged.clear()
        self._ripe.pop(edge, None)

    # --- what people and the next owner see ------------------------------------------------------

    def view(self, now: float) -> tuple[EdgeView, ...]:
        """Edges that are not at rest, by producer and consumer."""
        restless = [edge for edge in self.map.all() if edge.failures or edge in self._owing]
        return tuple(_view(edge, now) for edge in sorted(restless, key=_ends))

    def export(self, now: float) -> list[dict[str, Any]]:
        """The avoided edges, for the handoff's `edges`."""
        avoided = sorted((edge for edge in self._owing if edge.avoided_at is not None), key=_ends)
        views = [_view(edge, now) for edge in avoided]
        return [{name: getattr(view, name) for name in _TRAVELS} for view in views]

    def restore(self, told: object, now: float) -> None:
        """Replaces everything by the avoided edges that a handoff tells; each owes a probe at once.

        What is no edge of two configured engines is left out.
        """
        self.map.clear()
        self._rows.clear()
        self._ripe, self._owing, self.avoided = {}, {}, {}
        for row in told if isinstance(told, list | tuple) else ():
            edge = self.map.edge(*_told_ends(row))
            if edge is not None:
                age_s = seconds(row.get("age_s")) or 0.0
                self._avoid(edge, str(row.get("reason") or _UNTOLD), now=now - age_s, due_at=now)

    def check_invariants(self) -> None:
        """Raises InvariantViolation where the accounts of one edge contradict each other."""
        edges = tuple(self.map.all())
        avoided = {(edge.producer, edge.consumer) for edge in edges if edge.avoided_at is not None}
        if avoided != {(iid, name) for iid, names in self.avoided.items() for name in names}:
            raise InvariantViolation("edges: placement avoids others than the avoided ones")
        for edge in edges:
            pair = f"{edge.producer} -> {edge.consumer}"
            if (edge.due_at is not None) != (edge in self._owing):
                raise InvariantViolation(f"{pair}: owes a probe and is not asked, or the other way round")
            if edge.avoided_at is not None and edge.due_at is None:
                raise InvariantViolation(f"{pair}: avoided, and nobody will ever look again")
            if edge in self._ripe and edge.failures < self._eject_after:
                raise InvariantViolation(f"{pair}: ripe below the threshold")


def _ends(edge: Edge) -> tuple[str, str]:
    return edge.producer, edge.consumer


def _told_ends(row: object) -> tuple[str, str]:
    """Of what a handoff tells, which may be anything."""
    return (str(row.get("producer")), str(row.get("consumer"))) if isinstance(row, Mapping) else ("", "")


def _view(edge: Edge, now: float) -> EdgeView:
    return EdgeView(
        edge.producer,
        edge.consumer,
        failures=edge.failures,
        avoided=edge.avoided_at is not None,
        age_s=None if edge.avoided_at is None else round(now - edge.avoided_at, 3),
        reason=edge.reason,
    )
