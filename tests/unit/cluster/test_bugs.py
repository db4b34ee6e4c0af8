"""Errors in callbacks of the main loop, which nobody awaits."""

from __future__ import annotations

import asyncio

import pytest

from narwhal.errors import InvariantViolation
from narwhal.model.leadership import LeaseSight
from tests.unit.cluster.cluster_rig import Scene, play


def test_a_bug_met_by_what_the_keeper_tells_ends_the_member() -> None:
    """The loop would only log it, and this router go on without knowing what it owns."""

    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        work = asyncio.ensure_future(router.parts.member.run())
        await scene.clock.sleep(1.0)
        router.parts.member._crew.history.saw = _contradiction  # type: ignore[method-assign]
        router.parts.member.take(LeaseSight())
        with pytest.raises(InvariantViolation, match="seen twice"):
            async with asyncio.timeout(2.0):
                await work

    play(script)


def test_a_bug_met_before_the_member_runs_ends_its_start() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        router.parts.member._crew.history.saw = _contradiction  # type: ignore[method-assign]
        router.parts.member.take(LeaseSight())
        with pytest.raises(InvariantViolation, match="seen twice"):
            await router.parts.member.run()

    play(script)


def _contradiction(sight: LeaseSight) -> bool:
    raise InvariantViolation("seen twice")
