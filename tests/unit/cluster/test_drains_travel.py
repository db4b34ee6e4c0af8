"""A drain answered as durable is there after a takeover, whatever answers were lost before it (I5)."""

from __future__ import annotations

import pytest

from narwhal.model.engine import EngineSpec
from narwhal.model.lease import Published
from tests.unit.cluster.cluster_rig import ENGINES, Router, Scene, play


def drained(router: Router) -> list[str]:
    return [spec.iid for spec in ENGINES if router.fleet.upkeep.drains.record(spec.iid).out]


async def pair(scene: Scene) -> tuple[Router, Router]:
    """An owner and a standby that has read its document; their first monitor passes are over."""
    first = await scene.owner("r0")
    second = scene.router("r1")
    second.start()
    await scene.until(lambda: second.parts.mirror.document is not None)
    await scene.clock.sleep(1.0)
    return first, second


async def delta(scene: Scene, owner: Router) -> None:
    """A change that only a delta carries at once; returns when it is in the log."""
    top = scene.server.data.log_top
    owner.fleet.streaks = {"e0": {"liveness": 1}}
    await scene.until(lambda: scene.server.data.log_top != top)


async def drain(owner: Router) -> None:
    owner.fleet.upkeep.drain("e0", deadline_at=2_000_000_000.0)
    assert isinstance(await owner.parts.publisher.snapshot(), Published)


@pytest.mark.parametrize("wait_s", [0.0, 0.3])
def test_after_an_append_whose_answer_was_lost(wait_s: float) -> None:
    """The owner believes its log to be one entry shorter than its standby has read."""

    async def script(scene: Scene) -> None:
        first, second = await pair(scene)
        first.handoffs.mute = True
        await delta(scene, first)
        first.handoffs.mute = False
        await drain(first)
        await scene.clock.sleep(wait_s)
        if wait_s:
            held = second.parts.mirror.document
            assert held is not None
            assert [one["engine"] for one in held.lifecycle["records"]] == ["e0"]
        first.kill()
        await scene.until(lambda: second.owns)
        assert drained(second) == ["e0"]

    play(script)


def test_a_delta_that_arrives_after_the_snapshot_that_contains_it_takes_nothing_back() -> None:
    """The snapshot tells a position below that entry, whose values are older than the document's."""

    async def script(scene: Scene) -> None:
        first, second = await pair(scene)
        first.handoffs.mute = True
        await delta(scene, first)
        first.handoffs.mute = False
        first.fleet.streaks = {"e0": {"liveness": 2}}
        assert isinstance(await first.parts.publisher.snapshot(), Published)
        first.kill()
        await scene.until(lambda: second.owns)
        plan = second.parts.takeover.plan
        assert plan is not None and plan.state is not None
        assert plan.state.document.streaks == {"e0": {"liveness": 2}}

    play(script)


@pytest.mark.parametrize("saved", ["the store", "the file"])
def test_also_over_an_owner_whose_fleet_file_lacks_the_engine(saved: str) -> None:
    """The file changes on one router after the other, and is taken back; once the store is lost meanwhile."""

    async def script(scene: Scene) -> None:
        before = await scene.owner("r0")
        await drain(before)
        others = (ENGINES[1], EngineSpec("e2", "http://e2"))
        between = scene.router("r1", engines=others)
        between.start()
        await scene.until(lambda: between.parts.mirror.document is not None)
        before.kill()
        await scene.until(lambda: between.owns)
        document = (await scene.stored()).document
        assert between.fleet.engines == ("e1", "e2") and b'"engine":"e0"' in document
        await between.parts.publisher.checkpoint()
        between.kill()
        if saved == "the file":
            scene.server.flush()
        after = scene.router("r1", checkpoint=between.checkpoint)
        after.start()
        await scene.until(lambda: after.owns, limit_s=40.0)
        assert drained(after) == ["e0"]

    play(script)
