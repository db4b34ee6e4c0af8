"""A few engines and a router in front of them, impatient so that a fault is judged and healed in seconds."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.faults.switches import DECODE, PREFILL, Switch
from tests.support.engines import EngineProcess, RemoteEngine, engine_process
from tests.support.journal_tail import JournalTail
from tests.support.load import Load
from tests.support.processes import LIVENESS_S, eventually
from tests.support.router import Router, fleet_document, router_process

FIRST_PRODUCER = "e0"
HEAL_S = 60.0
HEAL_RATE = 12.0
EJECT_AFTER = 3
MONITOR_S = 0.25
READMIT_EVERY = 4
PROBE_EVERY_S = MONITOR_S * READMIT_EVERY
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    # Advisory: an engine that floor repair moved would keep its new role in the cases that follow.
    "controller": {"monitor_interval_s": MONITOR_S, "advisory": True},
    "recovery": {
        "eject_after": EJECT_AFTER,
        "readmit_every": READMIT_EVERY,
        "liveness_every": READMIT_EVERY,
        "liveness_misses": 2,
        "health": {"window_s": 5.0},
    },
    "serving": {"prefill_timeout_s": 1.5, "max_attempts": 1, "retry_base_s": 0.02, "retry_cap_s": 0.1},
    "engine": {
        "connect_timeout_s": 1.0,
        "health_timeout_s": 1.0,
        "first_token_timeout_s": 1.0,
        "decode_read_timeout_s": 1.0,
        "tokenize_timeout_s": 0.5,
    },
}


@dataclass(frozen=True, slots=True)
class Site:
    """The first half prefill, the others decode: e0 and e1, e2 and e3 where they are four."""

    router: Router
    engines: EngineProcess
    tail: JournalTail

    def engine(self, iid: str) -> RemoteEngine:
        return next(one for one in self.engines.engines if one.name == iid)

    def targets(self, switches: Sequence[Switch]) -> tuple[str, ...]:
        """The engine that gets each fault: the second of its role, for a second fault there the third."""
        names = [one.name for one in self.engines.engines]
        half = len(names) // 2
        left = {PREFILL: iter(names[1:half]), DECODE: iter(names[half + 1 :])}
        return tuple(next(left[switch.role]) for switch in switches)

    def order(self, switch: Switch, iid: str) -> None:
        engine = self.engine(iid)
        if switch.edge:
            port = urlsplit(self.engine(FIRST_PRODUCER).side_url).port
            engine.order("edge", port=port, **switch.edge)
        for order in switch.orders:
            engine.order(**order)

    def clear(self) -> None:
        for engine in self.engines.engines:
            engine.clear()

    def out(self) -> dict[str, str]:
        """Engines that take no new request now, and the word for it."""
        state = self.router.state()
        held = dict.fromkeys(state["quarantined"], "held")
        return held | dict.fromkeys(state["ejected"], "ejected")

    def avoided(self) -> set[tuple[str, str]]:
        """Edges that placement avoids, as (producer, consumer)."""
        return {(row["producer"], row["consumer"]) for row in self.router.state()["edges"] if row["avoided"]}

    def router_lag_s(self) -> float:
        """Longest delay of the router's loop since its last monitor pass."""
        return self._metric("narwhal_event_loop_lag_seconds ")

    def passes(self) -> int:
        """Monitor passes of the router so far."""
        return int(self._metric('narwhal_monitor_stage_runs_total{outcome="ok",stage="readmission"} '))

    def _metric(self, series: str) -> float:
        with urllib.request.urlopen(f"{self.router.url}/metrics", timeout=LIVENESS_S) as answer:
            lines = answer.read().decode().splitlines()
        (told,) = [line for line in lines if line.startswith(series)]
        return float(told.rpartition(" ")[2])

    def sound(self) -> bool:
        """Nobody is out, owes a probe, has a streak or an edge to avoid; the split is as configured."""
        state = self.router.state()
        untroubled = not (self.out() or state["draining"] or state["probation"] or self.avoided())
        return untroubled and not any(any(row.values()) for row in state["breaker"]["failures"].values())

    async def heal(self) -> None:
        """Ends every fault, and waits until the router has forgotten them. What ends by good work alone
        (streaks, probation) needs some."""
        self.clear()
        if await asyncio.to_thread(self.sound):
            return
        async with Load(self.router.url, f"heal-{time.monotonic_ns()}", rate=HEAL_RATE, tokens=10):
            await asyncio.to_thread(eventually, self.sound, within_s=HEAL_S, what="a sound fleet")
        await asyncio.to_thread(self.router.becomes_idle)


@contextmanager
def fault_site(folder: Path, *, count: int = 4, **changes: Mapping[str, Any]) -> Iterator[Site]:
    """`count` engines; `changes` go over the sections of the fleet file."""
    names = {*SECTIONS, *changes}
    sections = {name: {**SECTIONS.get(name, {}), **changes.get(name, {})} for name in names}
    with engine_process(count, "--prefill", "0.005", "--interval", "0.01") as engines:
        fleet = fleet_document(engines.engines, **sections)
        with router_process(folder, fleet) as router:
            yield Site(router, engines, JournalTail(folder / "journal.jsonl"))
