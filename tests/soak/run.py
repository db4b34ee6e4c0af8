"""One soak from start to verdict: faults and takeovers under load, then silence, then the checks."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.soak import checks
from tests.soak.cluster import SETTLE_S, Cluster, cluster
from tests.soak.crew import Books, Crew
from tests.soak.script import POISONED, SPARED, Trouble, is_edge, takeovers, troubles
from tests.soak.watch import Sights, Watch, journal_rows
from tests.support.engines import RemoteEngine

HEALTHY_S = 30.0
LEDGER_S = 36.0
"""Handoffs leave the routers' accounts at the end of vLLM's own lease, whatever these engines' is."""
QUIET_LOOKS = 20
FDS_MORE = 8
TASKS_MORE = 6


@dataclass(slots=True)
class Report:
    """What a soak did and found. `breaches` is empty when everything held."""

    seed: int
    minutes: float
    figures: dict[str, Any] = field(default_factory=dict)
    breaches: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"soak: seed {self.seed}, {self.minutes:g} minutes"]
        lines += [f"  {name}: {value}" for name, value in self.figures.items()]
        lines += [f"  BREACH {words}" for words in self.breaches] or ["  everything held"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Rest:
    """What a router has open when nothing goes on."""

    descriptors: int
    tasks: int


class Soak:
    """Runs once. `play` gives the report; a process that dies unasked raises."""

    def __init__(self, made: Cluster, seed: int, *, minutes: float) -> None:
        self._cluster = made
        self._seed = seed
        self._length_s = minutes * 60
        self._end = threading.Event()
        self.trouble: list[str] = []
        self._ordered: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._healthy_s: float | None = None
        self._spells = checks.Spells()

    def play(self) -> Report:
        began = [rest_of(self._cluster, number) for number in range(2)]
        watch = Watch(self._cluster, on_error=self._end.set)
        crew = Crew([seat.url for seat in self._cluster.seats], self._seed)
        threads = [
            threading.Thread(target=self.guarded, args=(work,), daemon=True)
            for work in (self._make_trouble, self._move_ownership)
        ]
        for engine in self._cluster.engines:
            self._clear(engine)  # Poison is poison from the first client on.
        watch.start()
        crew.start()
        for thread in threads:
            thread.start()
        self._end.wait(self._length_s)
        self._end.set()
        for thread in threads:
            thread.join(2 * SETTLE_S)
        self._await_health()
        crew.stop()
        self._await_rest()
        watch.stop()
        return self._judge(watch.sights, crew.books, began)

    def guarded(self, work: Any) -> None:
        """Runs what troubles the cluster; its own end by an error is a breach, and the end of the run."""
        try:
            work()
        except Exception as error:
            # Whatever it was: without this thread nothing would be proved any more.
            self.trouble.append(f"{type(error).__name__}: {error}")
            self._end.set()

    # --- what is done to it ---------------------------------------------------------------------------

    def _make_trouble(self) -> None:
        """Orders faults and ends each after its time; at the end all of them."""
        due: dict[int, float] = {}
        for trouble in troubles(self._seed):
            self._pause(trouble.pause_s, due)
            while len(due) >= trouble.at_once and not self._end.is_set():
                self._pause(0.1, due)
            if self._end.is_set():
                break
            self._order(trouble)
            due[trouble.engine] = time.monotonic() + trouble.lasts_s
        for engine in self._cluster.engines:
            self._clear(engine)

    def _clear(self, engine: RemoteEngine) -> None:
        """Sound again, but for who asks for poison."""
        engine.clear()
        for order in POISONED:
            engine.order(**order)
        self._spells.end(engine.name, time.time())

    def _pause(self, seconds: float, due: dict[int, float]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._end.wait(0.05):
            for number in [one for one, at in due.items() if at <= time.monotonic()]:
                self._clear(self._cluster.engines[number])
                del due[number]

    def _order(self, trouble: Trouble) -> None:
        engine = self._cluster.engines[trouble.engine]
        self._spells.begin(engine.name, time.time())
        if is_edge(trouble):
            port = urlsplit(self._cluster.engines[trouble.producer].side_url).port
            engine.order("edge", port=port, **trouble.switch.edge)
        for order in trouble.switch.orders:
            engine.order(**order)
        self._ordered[trouble.switch.id] += 1

    def _move_ownership(self) -> None:
        for pause_s, way in takeovers(self._seed):
            if self._end.wait(pause_s):
                return
            self._cluster.take_over(way)
            self._taken[way] += 1

    # --- afterwards -----------------------------------------------------------------------------------

    def _await_health(self) -> None:
        """Clients go on: an engine with nothing to do proves nothing."""
        began = time.monotonic()
        while time.monotonic() < began + HEALTHY_S:
            if self._cluster.settled() and not list(self._ills()):
                self._healthy_s = time.monotonic() - began
                return
            time.sleep(0.2)

    def _ills(self) -> Iterator[str]:
        """What the owner still holds against an engine."""
        owner = self._cluster.owner()
        state = None if owner is None else owner.document("/narwhal/state")
        if owner is None or state is None:
            yield "nobody is in control"
            return
        for name in ("ejected", "quarantined", "probation", "draining", "edges", "holds"):
            if state[name]:
                yield f"{name}: {state[name]}"
        ready = owner.document("/ready")
        if ready is None or ready["status"] != "ready":
            yield f"not ready: {ready}"

    def _await_rest(self) -> None:
        """Until the last KV lease is over and nothing is in flight."""
        until = time.monotonic() + LEDGER_S + 20.0
        while time.monotonic() < until and list(self._open()):
            time.sleep(0.2)
        time.sleep(1.0)

    def _open(self) -> Iterator[str]:
        """What somebody still has in hand."""
        for engine in self._cluster.engines:
            stats = engine.stats()
            for name in ("running", "waiting", "held", "blocks_used"):
                if stats[name]:
                    yield f"{engine.name}: {name} {stats[name]}"
        for seat in self._cluster.seats:
            state = seat.document("/narwhal/state")
            if state is None:
                yield f"router {seat.name} does not answer"
                continue
            yield from (f"router {seat.name}: {words}" for words in _held(state))

    def _stays_open(self) -> set[str]:
        """What is open in every one of several looks: an owner's looks at engines are open for moments."""
        found = set(self._open())
        for _ in range(QUIET_LOOKS):
            if found:
                time.sleep(0.1)
                found &= set(self._open())
        return found

    # --- the judgement --------------------------------------------------------------------------------

    def _judge(self, sights: Sights, books: Books, began: list[Rest]) -> Report:
        report = Report(self._seed, self._length_s / 60)
        rows = journal_rows(self._cluster.seats)
        legs = [
            checks.Leg(row["at"], row["iid"], row["leg"], row["epoch"])
            for row in map(json.loads, self._cluster.record.read_text(encoding="utf-8").splitlines())
        ]
        events = checks.events_of(rows)
        found = checks.outages(sights.polls, events)
        report.breaches += self.trouble
        report.breaches += checks.legs_on_engines_that_were_out(legs, found)
        report.breaches += checks.roles_emptied(sights.polls, events, self._pinned())
        report.breaches += checks.ejections_without_cause(events, self._spells)
        spared = {self._cluster.engines[number].name for number in SPARED}
        report.breaches += checks.befell_the_spared(rows, spared, self._spells)
        report.breaches += checks.totals_that_do_not_add_up(sights.totals)
        report.breaches += checks.rows_unlike_totals(rows, sights.totals[-1], self._living_runs(rows))
        report.breaches += books.odd
        report.breaches += checks.blamed_without_cause(books.blamed, self._spells)
        report.breaches += self._not_served(books, sights)
        if self._healthy_s is None:
            report.breaches += [f"{HEALTHY_S:g} s after the last fault: {words}" for words in self._ills()]
        report.breaches += [f"left open: {words}" for words in sorted(self._stays_open())]
        report.breaches += self._leaks(began)
        report.breaches += self._tracebacks()
        totals: Counter[str] = Counter()
        for counters in sights.totals[-1].by_run.values():
            totals.update(counters)
        report.figures = {
            "faults": dict(self._ordered.most_common()),
            "takeovers": dict(self._taken),
            "requests by the totals": dict(totals),
            "endings by the clients": dict(books.how.most_common()) | {"left": books.left},
            "legs": dict(Counter(leg.leg for leg in legs)),
            "looks": len(sights.polls),
            "outages": f"{len(found)}, {sum(one.end - one.begin for one in found):.0f} engine seconds",
            "verdicts": dict(Counter(event.kind for event in events)),
            "everything healthy after": f"{self._healthy_s} s",
        }
        return report

    def _pinned(self) -> frozenset[str]:
        owner = self._cluster.owner()
        state = None if owner is None else owner.document("/narwhal/state")
        return frozenset(state["pinned"]) if state else frozenset()

    def _living_runs(self, rows: Mapping[str, list[dict[str, Any]]]) -> list[str]:
        return [next(row["run"] for row in reversed(journal)) for journal in rows.values()]

    def _not_served(self, books: Books, sights: Sights) -> Iterator[str]:
        """Whole answers at clients are counted as served; those who left may have been served as well.

        A host that is lost takes what it served in its last 0.2 s with it.
        """
        served = sum(counters["served"] for counters in sights.totals[-1].by_run.values())
        lost = 40 * self._taken["host lost"]
        if served < books.whole - lost:
            yield f"clients got {books.whole} whole answers, {served} are counted as served"
        if served > books.whole + books.left + sum(books.how.values()):
            yield f"{served} are counted as served, clients got {books.whole} whole answers"

    def _leaks(self, began: list[Rest]) -> Iterator[str]:
        most = Rest(max(one.descriptors for one in began), max(one.tasks for one in began))
        for number, seat in enumerate(self._cluster.seats):
            now = rest_of(self._cluster, number)
            if now.descriptors > most.descriptors + FDS_MORE:
                yield f"router {seat.name}: {now.descriptors} descriptors, {most.descriptors} at the start"
            if now.tasks > most.tasks + TASKS_MORE:
                yield f"router {seat.name}: {now.tasks} tasks, {most.tasks} at the start"

    def _tracebacks(self) -> Iterator[str]:
        for seat in self._cluster.seats:
            lines = [*seat.output, *seat.router.process.lines]
            for number, line in enumerate(lines):
                if line.startswith("Traceback"):
                    yield f"router {seat.name}: " + " / ".join(lines[number : number + 40])


def rest_of(made: Cluster, number: int) -> Rest:
    """The least of several looks: a monitor pass opens some things for moments."""
    seat = made.seats[number]
    looks = []
    for _ in range(QUIET_LOOKS):
        looks.append((seat.descriptors(), seat.tasks()))
        time.sleep(0.1)
    return Rest(min(fds for fds, _ in looks), min(tasks for _, tasks in looks))


def _held(state: Mapping[str, Any]) -> Iterator[str]:
    for name in ("inflight", "queued"):
        if state["admission"][name]:
            yield f"{name} {state['admission'][name]}"
    for iid, resident in state["resident"].items():
        if any(resident.values()):
            yield f"resident on {iid}: {resident}"
    for pool, view in state["http_pools"].items():
        if view["busy"] or view["waiting"]:
            yield f"pool {pool}: {view}"
    for iid, kv in state["kv"].items():
        if kv["handoffs"]:
            yield f"KV of {iid}: {kv}"


def soak(folder: Path, seed: int, *, minutes: float) -> Report:
    """Plays one soak in a folder of its own, which keeps journals and records."""
    with cluster(folder, random.Random(f"fleet {seed}")) as made:
        return Soak(made, seed, minutes=minutes).play()
