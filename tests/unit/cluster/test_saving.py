"""Checkpoints that are written at once, each in a thread of its own, and that of a fenced router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from narwhal.cluster.lease_loop import SAVE_S
from narwhal.model.handoff import CheckpointRecord
from narwhal.store.memory import MemoryCheckpoint
from tests.unit.cluster.cluster_rig import Router, Scene, play


async def two_writes(scene: Scene, router: Router) -> list[Callable[[], None]]:
    """Composed one second apart, and not yet begun by their threads."""
    publisher, writes = router.parts.publisher, []

    async def later(call: Callable[[], None]) -> None:
        writes.append(call)

    publisher._ports = replace(publisher._ports, blocking=later)
    await publisher.checkpoint()
    await scene.clock.sleep(1.0)
    await publisher.checkpoint()
    return writes


def test_a_write_that_comes_late_does_not_replace_a_newer_document() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        older, newer = await two_writes(scene, router)
        newer()
        written = router.checkpoint.record
        older()
        assert written is not None
        assert router.checkpoint.record is written

    play(script)


def test_writes_in_order_are_all_made() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        older, newer = await two_writes(scene, router)
        older()
        first = router.checkpoint.record
        newer()
        second = router.checkpoint.record
        assert first is not None and second is not None
        assert second.boottime_s == first.boottime_s + 1.0

    play(script)


def test_a_newer_document_that_could_not_be_written_is_not_waited_for() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        older, newer = await two_writes(scene, router)
        router.checkpoint.fails_with = OSError("disk full")
        with pytest.raises(OSError, match="disk full"):
            newer()
        router.checkpoint.fails_with = None
        older()
        assert router.checkpoint.record is not None

    play(script)


class Witness(MemoryCheckpoint):
    """Notes at each write whether the lease is still that of `epoch`."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._scene = scene
        self.epoch = 0
        self.held: list[bool] = []

    def write(self, record: CheckpointRecord) -> None:
        self.held.append(holds(self._scene, self.epoch))
        super().write(record)


def holds(scene: Scene, epoch: int) -> bool:
    """False once it was given back, also if the router, who is alone, has acquired it again."""
    lease = scene.server.data.lease
    return lease["state"] == "held" and int(lease["epoch"]) == epoch


def fence(owner: Router) -> int:
    """The epoch that is over."""
    grip = owner.parts.gate.grip
    assert grip is not None
    owner.parts.keeper.fence(grip.token, "the first fenced write did not succeed")
    return grip.epoch


def test_a_fenced_router_writes_its_checkpoint_before_it_gives_the_lease_back() -> None:
    async def script(scene: Scene) -> None:
        witness = Witness(scene)
        owner = await scene.owner(checkpoint=witness)
        witness.held.clear()
        witness.epoch = fence(owner)
        await scene.until(lambda: not holds(scene, witness.epoch), limit_s=SAVE_S / 2)
        assert witness.held[0]

    play(script)


def test_a_checkpoint_that_cannot_be_written_does_not_keep_the_lease() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner()
        owner.checkpoint.fails_with = OSError("disk full")
        epoch = fence(owner)
        await scene.until(lambda: not holds(scene, epoch), limit_s=SAVE_S / 2)

    play(script)


def test_a_main_loop_that_stands_still_keeps_the_lease_for_half_a_second_more() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner()
        owner.main.paused_until = scene.loop.time() + 60.0
        epoch = fence(owner)
        await scene.clock.sleep(SAVE_S - 0.1)
        assert holds(scene, epoch)
        await scene.until(lambda: not holds(scene, epoch), limit_s=0.2)

    play(script)
