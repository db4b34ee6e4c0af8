"""The control gate: who may admit, by the clock at that instant."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.local import LocalGate
from narwhal.model.control import RouterState
from narwhal.model.leadership import LeaseSight
from narwhal.model.lease import holder_of


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Interrupted(HandClock):
    """A clock in whose reading another thread comes between: it fences, if nothing holds it up."""

    def __init__(self) -> None:
        super().__init__()
        self.fencing: threading.Thread | None = None

    def now(self) -> float:
        if self.fencing is not None and self.fencing.ident is None:
            self.fencing.start()
            self.fencing.join(0.2)
        return self.at


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def gate(clock: HandClock) -> LeasedGate:
    gate = LeasedGate(clock, "r0")
    gate.sight = LeaseSight(store_reachable=True)
    return gate


def opened(gate: LeasedGate) -> None:
    gate.grant("t", 7, valid_until=4.0)
    gate.sight = replace(gate.sight, state=RouterState.OWNER, record="held", epoch=7)
    assert gate.open("t")


def test_admits_from_opening_until_the_deadline_by_the_clock(gate: LeasedGate) -> None:
    gate.grant("t", 7, valid_until=4.0)
    assert not gate.may_admit(0.0)
    assert gate.open("t")
    assert gate.may_admit(3.999)
    assert not gate.may_admit(4.0)


def test_legs_carry_the_own_epoch_to_their_end_and_probes_only_while_it_is_held(
    gate: LeasedGate, clock: HandClock
) -> None:
    gate.sight = replace(gate.sight, epoch=5, record="held")
    assert (gate.leg_epoch, gate.probe_epoch(0.0)) == (None, None)
    opened(gate)
    assert (gate.leg_epoch, gate.probe_epoch(3.9)) == (7, 7)
    assert gate.probe_epoch(4.0) is None
    gate.fence("t", "lost")
    gate.sight = replace(gate.sight, state=RouterState.STANDBY, epoch=8)
    assert (gate.epoch, gate.leg_epoch, gate.probe_epoch(0.0)) == (8, 7, None)


def test_epoch_and_holder_are_the_own_ones_while_held(gate: LeasedGate) -> None:
    gate.sight = replace(gate.sight, epoch=5, holder="r9:x")
    assert (gate.epoch, gate.holder) == (5, "r9:x")
    gate.grant("t", 7, valid_until=4.0)
    assert (gate.epoch, gate.holder) == (7, holder_of("r0", "t"))
    assert "t" not in gate.holder.split(":")[1] or len(gate.holder.split(":")[1]) == 16
    gate.fence("t", "why")
    assert (gate.epoch, gate.holder) == (5, "r9:x")


def test_extending_moves_the_deadline_and_never_back(gate: LeasedGate) -> None:
    opened(gate)
    assert gate.extend("t", 6.0)
    assert gate.extend("t", 5.0)
    assert gate.may_admit(5.9)


def test_fenced_is_final(gate: LeasedGate) -> None:
    opened(gate)
    assert gate.alive("t")
    assert gate.fence("t", "an engine refused the epoch")
    assert not gate.fence("t", "again")
    assert not gate.alive("t")
    assert not gate.extend("t", 9.0)
    assert not gate.open("t")
    assert not gate.may_admit(0.0)
    assert gate.refusal(0.0) == "fenced: an engine refused the epoch"


def fenced_amid_an_extension(lock: AbstractContextManager[object]) -> bool:
    """Whether a fence that falls between look and set of an extension is still there afterwards."""
    clock = Interrupted()
    gate = LeasedGate(clock, "r0")
    opened(gate)
    gate._lock = lock  # type: ignore[assignment]
    clock.fencing = threading.Thread(target=gate.fence, args=("t", "an engine refused the epoch"))
    gate.extend("t", 6.0)
    clock.fencing.join(10.0)
    return not gate.alive("t") and not gate.may_admit(0.0)


def test_extending_and_fencing_are_one_step_each_under_one_lock() -> None:
    assert fenced_amid_an_extension(threading.Lock())
    assert not fenced_amid_an_extension(contextlib.nullcontext()), "without the lock the fence is undone"


def test_the_gate_has_such_a_lock(gate: LeasedGate) -> None:
    assert fenced_amid_an_extension(gate._lock)


def test_another_token_is_not_this_one(gate: LeasedGate) -> None:
    opened(gate)
    assert not gate.extend("u", 9.0)
    assert not gate.fence("u", "why")
    assert not gate.open("u")
    assert gate.may_admit(0.0)


def test_a_deadline_that_has_passed_is_not_extended(gate: LeasedGate, clock: HandClock) -> None:
    opened(gate)
    clock.at = 4.0
    assert not gate.extend("t", 9.0)
    assert not gate.open("t")
    assert gate.refusal(4.0) == "fenced: the lease ran out on this router's clock"


@pytest.mark.parametrize(
    ("reachable", "shutting", "reason"),
    [(True, False, "standby"), (False, False, "lease store unavailable"), (False, True, "shutting down")],
)
def test_refusals_of_a_standby(gate: LeasedGate, reachable: bool, shutting: bool, reason: str) -> None:
    gate.sight = replace(gate.sight, state=RouterState.STANDBY, store_reachable=reachable)
    gate.shutting_down = shutting
    assert gate.refusal(0.0) == reason


def test_closing_keeps_the_lease_and_ends_admission(gate: LeasedGate) -> None:
    opened(gate)
    assert gate.close() == "t"
    assert not gate.may_admit(0.0)
    assert gate.extend("t", 6.0)


def test_closing_without_a_lease_names_no_token(gate: LeasedGate) -> None:
    assert gate.close() == ""
    gate.grant("t", 7, valid_until=4.0)
    gate.fence("t", "why")
    assert gate.close() == ""


def test_nothing_is_undecided_while_an_owner_lives(gate: LeasedGate) -> None:
    gate.sight = replace(gate.sight, record="held", epoch=3)
    asyncio.run(asyncio.wait_for(gate.decided(30.0), 5))


def test_a_released_lease_holds_requests_until_it_is_opened_here(gate: LeasedGate) -> None:
    async def scene() -> bool:
        gate.sight = replace(gate.sight, record="released", released_at=0.0)
        waiting = asyncio.create_task(gate.decided(30.0))
        await asyncio.sleep(0)
        gate.grant("t", 7, valid_until=4.0)
        gate.sight = replace(gate.sight, state=RouterState.RESTORING, record="held", epoch=7)
        gate.changed()
        await asyncio.sleep(0)
        undecided = not waiting.done()
        gate.open("t")
        await asyncio.wait_for(waiting, 5)
        return undecided and gate.may_admit(0.0)

    assert asyncio.run(scene())


def test_a_yielding_router_holds_requests_until_another_owns(gate: LeasedGate) -> None:
    async def scene() -> bool:
        opened(gate)
        gate.close()
        waiting = asyncio.create_task(gate.decided(30.0))
        await asyncio.sleep(0)
        undecided = not waiting.done()
        gate.sight = replace(gate.sight, state=RouterState.STANDBY, record="held", epoch=8)
        gate.changed()
        await asyncio.wait_for(waiting, 5)
        return undecided and not gate.may_admit(0.0)

    assert asyncio.run(scene())


def test_a_handover_that_nobody_ends_holds_no_request_after_2_s(gate: LeasedGate, clock: HandClock) -> None:
    gate.sight = replace(gate.sight, record="released", released_at=0.0)
    clock.at = 2.0
    asyncio.run(asyncio.wait_for(gate.decided(30.0), 5))


def test_a_router_that_restores_holds_requests_without_having_seen_a_release(gate: LeasedGate) -> None:
    gate.grant("t", 7, valid_until=10.0)
    gate.sight = replace(gate.sight, record="held", epoch=7, released_at=None, state=RouterState.RESTORING)

    async def scene() -> bool:
        waiting = asyncio.create_task(gate.decided(30.0))
        await asyncio.sleep(0)
        held = not waiting.done()
        assert gate.open("t")
        await waiting
        return held and gate.may_admit(0.0)

    assert asyncio.run(scene())


def test_who_yielded_long_ago_holds_requests_at_the_next_handover_too(
    gate: LeasedGate, clock: HandClock
) -> None:
    async def scene() -> bool:
        opened(gate)
        gate.close()
        clock.at = 100.0
        gate.sight = replace(gate.sight, state=RouterState.STANDBY, record="released", released_at=99.9)
        waiting = asyncio.create_task(gate.decided(30.0))
        await asyncio.sleep(0)
        undecided = not waiting.done()
        gate.sight = replace(gate.sight, record="held", epoch=9, released_at=None)
        gate.changed()
        await asyncio.wait_for(waiting, 5)
        return undecided

    assert asyncio.run(scene())


def test_local_control_admits_until_shutdown() -> None:
    gate = LocalGate()
    assert (gate.epoch, gate.holder, gate.refusal(0.0)) == (0, "", "")
    assert gate.may_admit(1e9)
    gate.shutting_down = True
    assert not gate.may_admit(0.0)
    assert gate.refusal(0.0) == "shutting down"


# --- engines that refuse our epoch -------------------------------------------------------------------


@pytest.fixture
def superseded(gate: LeasedGate) -> list[tuple[str, int, str]]:
    told: list[tuple[str, int, str]] = []

    def supersede(token: str, floor: int, why: str) -> None:
        told.append((token, floor, why))
        gate.fence(token, why)

    gate.supersede = supersede
    return told


def test_an_engine_that_knows_a_higher_epoch_ends_the_ownership(
    gate: LeasedGate, superseded: list[tuple[str, int, str]]
) -> None:
    opened(gate)
    assert gate.overruled("e0", 8)
    assert superseded == [("t", 8, "engine e0 knows epoch 8")]
    assert not gate.may_admit(0.0)
    assert gate.refusal(0.0) == "fenced: engine e0 knows epoch 8"
    assert gate.overruled("e1", 8)
    assert len(superseded) == 1


@pytest.mark.parametrize("epoch", [1, 6, 7])
def test_an_epoch_that_is_not_higher_proves_nothing_and_is_said_once(
    gate: LeasedGate, superseded: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    opened(gate)
    for _ in range(1000):
        assert not gate.overruled("e0", epoch)
    assert (superseded, gate.may_admit(0.0)) == ([], True)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("epoch", [7 + 2**33 + 1, 2**52 - 1])
def test_an_epoch_that_no_owner_can_have_reached_ends_nothing_and_is_said_once(
    gate: LeasedGate, superseded: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    """Taken as a floor, it would use up the epochs that are left: nobody could ever own again."""
    opened(gate)
    for _ in range(1000):
        assert not gate.overruled("e0", epoch)
    assert (superseded, gate.may_admit(0.0)) == ([], True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"engine e0 claims epoch {epoch}" in caplog.text


def test_the_highest_epoch_that_is_believed_is_a_margin_above_the_own(
    gate: LeasedGate, superseded: list[tuple[str, int, str]]
) -> None:
    opened(gate)
    assert gate.overruled("e0", 7 + 2**33)
    assert len(superseded) == 1


def test_without_a_lease_of_ones_own_there_is_nothing_to_end(
    gate: LeasedGate, superseded: list[tuple[str, int, str]]
) -> None:
    assert not gate.overruled("e0", 8)
    assert not LocalGate().overruled("e0", 8)
    assert superseded == []
