"""The table of faults (cluster.md section 8): what is done to the cluster, and what is promised."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from narwhal.cli.drill import faults
from narwhal.cli.drill.stage import Needs, Stage

Act = Callable[[Stage], Coroutine[Any, Any, None]]
NOTHING: Final = Needs()


@dataclass(frozen=True, slots=True)
class Row:
    """`act` does it and returns when the fault is over, or at once where it stays. `goal_s`: most seconds
    to the first request elsewhere, None where the owner stays; `typical_s`: goal of the median, if any.

    `silent`: nobody tells the standbys, so they must watch the record for T. `cuts`: streams of the old
    owner break. `outage`: for longer than a client behind a balancer is made to wait nobody can own.
    `exact`: no count is lost."""

    event: str
    formula: str
    act: Act
    goal_s: float | None
    typical_s: float | None = None
    silent: bool = False
    cuts: bool = False
    outage: bool = False
    exact: bool = True
    needs: Needs = NOTHING


ROWS: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "restart": Row(
            "clean shutdown", "flush + release + wake + acquire + publish", faults.restart, 0.15, 0.05
        ),
        "yield": Row("yield", "flush + release + wake + acquire + publish", faults.hand_over, 0.15, 0.05),
        "kill": Row(
            "router killed (-9)", "waitpid + the same", faults.kill, 0.3, cuts=True, needs=Needs(warden=True)
        ),
        "freeze": Row(
            "process frozen", "2 s stall limit + kill + the same", faults.freeze, 2.5, cuts=True,
            needs=Needs(warden=True),
        ),
        "host": Row(
            "host lost", "T − φ + s", faults.lose_host, 5.3, silent=True, cuts=True, exact=False
        ),
        "partition": Row(
            "owner cut off from the store", "T − φ + s", faults.partition, 5.3, silent=True,
            needs=Needs(doors=True),
        ),
        "store-frozen": Row(
            "store frozen for 2.5 s", "0", faults.freeze_store, None, needs=Needs(own_store=True)
        ),
        "store-restarted": Row(
            "store restarted within 2.5 s", "0", faults.restart_store, None, needs=Needs(own_store=True)
        ),
        "store-emptied": Row(
            "store restarted empty within 2.5 s", "0", faults.empty_store, None, needs=Needs(own_store=True)
        ),
        "promotion": Row(
            "replica promoted within 2.5 s", "0", faults.promote, None,
            needs=Needs(own_store=True, doors=True, replicas=2),
        ),
        "store-down": Row(
            "store down for 8 s", "outage + T + P", faults.stop_store, 8.0 + 5.25, silent=True, outage=True,
            needs=Needs(own_store=True),
        ),
        "failsafe": Row(
            "store down for 8 s, fail-safe", "0", faults.stop_store, None,
            needs=Needs(own_store=True, failsafe=True),
        ),
    }
)  # fmt: skip
