"""Checkpoints that are written at once, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

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
