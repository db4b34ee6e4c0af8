"""Counters come back from the local file, whatever was refused or written before anybody owned (I4)."""

from __future__ import annotations

from narwhal.model.engine import EngineSpec
from narwhal.model.request import Outcome
from tests.unit.cluster.cluster_rig import ENGINES, Router, Scene, play


async def all_dead(scene: Scene, *, served: int = 100) -> Router:
    """An owner served requests and drained an engine; everything ends, and the store comes back empty."""
    first = await scene.owner("r0")
    for _ in range(served):
        first.totals.finished(Outcome.SERVED)
    await scene.clock.sleep(2.0)
    first.fleet.upkeep.drain("e0", deadline_at=2_000_000_000.0)
    await first.parts.publisher.snapshot()
    await first.parts.publisher.checkpoint()
    first.kill()
    scene.server.restart(None)
    return first


async def owns_and_serves(scene: Scene, router: Router, *, served: int = 10) -> None:
    await scene.until(lambda: router.owns, limit_s=40.0)
    for _ in range(served):
        router.totals.finished(Outcome.SERVED)
    await scene.clock.sleep(2.0)


def told(router: Router) -> tuple[int, int]:
    """What its metrics and its documents say was served."""
    document = router.parts.publisher.document()
    assert document is not None
    return router.totals.total().served, document.counters.served


def test_nobody_asked_meanwhile() -> None:
    async def script(scene: Scene) -> None:
        first = await all_dead(scene)
        again = scene.router("r0", checkpoint=first.checkpoint, resume=True)
        again.start()
        await owns_and_serves(scene, again)
        assert told(again) == (110, 110)

    play(script)


def test_a_client_was_refused_before_anybody_owned() -> None:
    async def script(scene: Scene) -> None:
        first = await all_dead(scene)
        again = scene.router("r0", checkpoint=first.checkpoint, resume=True)
        again.start()
        await scene.clock.sleep(0.5)
        again.totals.finished(Outcome.REFUSED)
        await owns_and_serves(scene, again)
        assert told(again) == (110, 110)
        assert again.totals.total().offered == 111

    play(script)


def test_another_router_without_a_file_refused_one_and_told_the_store() -> None:
    async def script(scene: Scene) -> None:
        first = await all_dead(scene)
        other, again = scene.router("r1"), scene.router("r0", checkpoint=first.checkpoint, resume=True)
        other.start()
        other.totals.finished(Outcome.REFUSED)
        await scene.clock.sleep(1.0)
        again.start()
        await owns_and_serves(scene, other)
        assert not again.owns
        assert told(other) == (110, 110)
        other.kill()
        await owns_and_serves(scene, again)
        assert told(again) == (120, 120)

    play(script)


def test_a_standby_learns_them_from_the_file_before_it_owns_and_tells_the_store() -> None:
    async def script(scene: Scene) -> None:
        first = await all_dead(scene)
        again = scene.router("r0", checkpoint=first.checkpoint)
        again.start()
        await scene.until(lambda: first.totals._run in scene.server.data.totals, limit_s=3.0)
        assert not again.owns

    play(script)


def test_who_dies_before_it_owned_leaves_counters_and_drains_in_the_file() -> None:
    async def script(scene: Scene) -> None:
        first = await all_dead(scene)
        short = scene.router("r0", checkpoint=first.checkpoint)
        short.start()
        await scene.clock.sleep(3.0)
        assert not short.owns
        short.kill()
        scene.server.restart(None)
        again = scene.router("r0", checkpoint=first.checkpoint)
        again.start()
        await owns_and_serves(scene, again)
        assert told(again) == (110, 110)
        assert [spec.iid for spec in ENGINES if again.fleet.upkeep.drains.record(spec.iid).out] == ["e0"]

    play(script)


def test_counters_of_runs_that_the_store_knows_too_count_once() -> None:
    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        for _ in range(5):
            first.totals.finished(Outcome.SERVED)
        await scene.clock.sleep(2.0)
        await first.parts.publisher.snapshot()
        await first.parts.publisher.checkpoint()
        first.totals.finished(Outcome.SERVED)
        await scene.clock.sleep(1.0)
        first.kill()
        again = scene.router("r0", checkpoint=first.checkpoint, resume=True)
        again.start()
        await owns_and_serves(scene, again)
        assert told(again) == (16, 16)

    play(script)


def test_counters_of_another_fleet_are_left() -> None:
    async def script(scene: Scene) -> None:
        first = await all_dead(scene)
        others = (EngineSpec("x0", "http://x0"), EngineSpec("x1", "http://x1"))
        again = scene.router("r0", checkpoint=first.checkpoint, engines=others)
        again.start()
        await owns_and_serves(scene, again)
        assert told(again) == (10, 10)

    play(script)
