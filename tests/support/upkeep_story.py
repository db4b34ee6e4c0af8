"""Drains and waves as documents show them: each step is shown."""

from __future__ import annotations

from collections.abc import Callable

from narwhal.model.evidence import Check, Validated
from narwhal.model.maintenance import Captured, WorkLeft
from narwhal.policy.readmission import ORDER
from tests.support.own_router import NOW, Own

EVERY_CHECK = tuple(Check(name, "passed") for name in ORDER)


def show_drains(own: Own, show: Callable[[], None]) -> None:
    """Two engines are drained, one after another; one comes back twice, the first time in vain."""
    upkeep = own.fleet.upkeep
    for number, iid in enumerate(("d0", "p0")):
        upkeep.drain(iid, deadline_at=1_900_000_000.0 + number)
        show()
        upkeep.captured(iid, Captured(10.0 + number, f"0.{number}", f"sha256:{number}"))
        upkeep.settle(iid, WorkLeft(0, 0, 0, 0, 0))
        show()
    for checks in (
        (Check("health", "failed", "no answer"),),
        (Check("health", "passed"), Check("process", "failed", "old")),
        EVERY_CHECK,
    ):
        upkeep.drains.begin("d0")
        show()
        upkeep.validated(Validated("d0", checks), process_start=20.0, now=NOW)
        show()
    upkeep.drain("d0", deadline_at=1_900_000_002.0)
    upkeep.drains.begin("d0")
    upkeep.validated(Validated("d0", (Check("health", "passed"),)), process_start=21.0, now=NOW)
    show()
    show_waves(own, show)


def show_waves(own: Own, show: Callable[[], None]) -> None:
    """Two waves: one that was required, one that an operator wanted."""
    upkeep = own.fleet.upkeep
    for number in range(2):
        if number == 0:
            upkeep.require_wave("d0 was ejected")
            show()
        upkeep.drain_wave(f"wave-{number}", deadline_at=1_900_000_000.0)
        show()
        for iid in own.fleet.engines:
            upkeep.captured(iid, Captured(10.0, "0.1"))
            upkeep.settle(iid, WorkLeft(0, 0, 0, 0, 0))
        show()
        upkeep.begin_wave()
        show()
        told = {iid: Validated(iid, EVERY_CHECK) for iid in own.fleet.engines}
        upkeep.wave_validated(told, process_starts=dict.fromkeys(told, 30.0 + number), now=NOW)
        show()
    for iid in own.fleet.engines:
        own.fleet.standings.eject(iid, "it refused", now=NOW)
        show()
