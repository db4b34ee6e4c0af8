"""The fault classes of cluster.md section 9: what may happen in a run, and in which kind of world.

A run: routers start and somebody opens; then the class's faults strike for `BUSY_S`; then everything must
heal.
"""

from __future__ import annotations

from dataclasses import dataclass

BUSY_S = 11.0
"""What faults do to network, store and processes is over at the end of it."""


@dataclass(frozen=True, slots=True)
class FaultClass:
    """`faults` are names of `tests.simulation.faults`, `ttls` the lease TTLs that routers are configured
    with, `rates` the bounds of their clock rates: a ratio below T/(T-M), 1.25 for T = 5 s."""

    faults: tuple[str, ...]
    rates: tuple[float, float] = (0.98, 1.02)
    extreme_rates: bool = False
    """Each clock runs at one of the bounds, not between them."""
    ttls: tuple[float, ...] = (5.0,)
    replicas: tuple[int, ...] = (0,)
    """How many replicas the store has. With two, a Sentinel stands beside each node."""
    wardens: tuple[bool, ...] = (False,)
    """Whether a router's process has a warden."""
    failsafe: tuple[bool, ...] = (False,)
    """Whether all routers are voters of fail-safe mode."""
    keeps_promises: bool = True
    """What was stored outlives every fault of the class (I5): not where store, memories and checkpoints are
    emptied together."""
    catalysts: tuple[str, ...] = ()
    """Faults of other classes, sometimes: what makes ownership change hands where the own faults do not."""


_CATALYSTS = ("crash", "partition", "yield_lease")
_PROCESSES = (
    *("pause", "stall", "hold", "stun", "crash", "crash_all", "yield_lease", "depose"),
    *("degrade_one", "break_disk", "outbid"),
)
_NETWORK = (
    "partition",
    "partition_partly",
    "lossy",
    "deaf",
    "late",
    "twice",
    "slow_everywhere",
    "part_routers",
)
_STORE = (
    *("freeze", "outage", "restart_empty", "restart_whole", "restart_rolled_back", "flush", "delete_lease"),
    *("evict", "delete_some_keys", "change_incarnation", "step_clock"),
)

_FAILOVERS = ("failover", "failover_with_loss", "isolate_primary", "lag")

CLASSES: dict[str, FaultClass] = {
    "pauses": FaultClass(("pause", "stall")),
    "pauses-around-sends": FaultClass(("hold", "stun")),
    "crashes": FaultClass(("crash", "crash_all")),
    "crashes-with-warden": FaultClass(("crash", "crash", "crash_all", "stall"), wardens=(True,)),
    "yields": FaultClass(("yield_lease", "yield_lease", "crash", "late")),
    "partitions": FaultClass(("partition", "partition_partly")),
    "lost-messages": FaultClass(("lossy", "deaf"), catalysts=_CATALYSTS),
    "late-messages": FaultClass(("late",), catalysts=_CATALYSTS),
    "repeated-messages": FaultClass(("twice",), catalysts=_CATALYSTS),
    "slow-everywhere": FaultClass(("slow_everywhere",), catalysts=_CATALYSTS),
    "store-frozen": FaultClass(("freeze",)),
    "store-restarted": FaultClass(("restart_whole",)),
    "store-rolled-back": FaultClass(("restart_rolled_back", "outbid"), catalysts=("partition",)),
    "store-emptied": FaultClass(("restart_empty", "flush"), catalysts=_CATALYSTS),
    "keys-deleted": FaultClass(("delete_lease", "evict", "delete_some_keys"), catalysts=_CATALYSTS),
    "store-clock-stepped": FaultClass(("step_clock",), catalysts=_CATALYSTS),
    "new-incarnation": FaultClass(("change_incarnation", "yield_lease", "pause")),
    "failover": FaultClass(("failover", "lag"), replicas=(1, 2), catalysts=_CATALYSTS),
    "failover-with-loss": FaultClass(("failover_with_loss", "lag"), replicas=(1, 2), catalysts=_CATALYSTS),
    "isolated-primary": FaultClass(("isolate_primary", "lag"), replicas=(1, 2), catalysts=_CATALYSTS),
    "fail-safe": FaultClass(
        (*("outage", "outage", "part_routers", "freeze", "pause", "hold", "stun"), *_CATALYSTS),
        failsafe=(True,),
    ),
    "common-cause": FaultClass(("degrade_everyone", "degrade_everyone", "degrade_one")),
    "own-cause": FaultClass(("break_disk", "break_disk", "break_disk", "yield_lease", "crash")),
    "mixed-ttl": FaultClass(("crash", "partition", "yield_lease", "stun"), ttls=(4.0, 5.0, 8.0)),
    "clock-rates": FaultClass(("pause", "partition", "stun", "deaf"), rates=(0.9, 1.12), extreme_rates=True),
    "engines-remember": FaultClass(
        (*("forget_everything", "forget_everything", "restart_engine"), *("outbid", "pause", *_CATALYSTS)),
        keeps_promises=False,
    ),
    "deposed": FaultClass(("depose", "depose", "crash", "pause", "deaf", "late"), wardens=(False, True)),
    "mixed": FaultClass(
        (*_PROCESSES, *_NETWORK, *_STORE, *_FAILOVERS),
        rates=(0.95, 1.05),
        ttls=(5.0, 5.0, 5.0, 8.0),
        replicas=(0, 0, 1, 2),
        wardens=(False, True),
        failsafe=(False, True),
    ),
}
