"""A standby whose log is broken reads the document again, once for each break, and follows on."""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import pytest

from narwhal.model.handoff import LogPosition
from tests.unit.cluster.cluster_rig import Router, Scene, play


async def following(scene: Scene) -> tuple[Router, Router]:
    owner = await scene.owner("r0")
    standby = scene.router("r1")
    standby.start()
    await scene.until(lambda: standby.parts.mirror.document is not None)
    await owner.parts.publisher.snapshot()
    await scene.clock.sleep(0.3)
    return owner, standby


def put(scene: Scene, kind: str, body: bytes) -> None:
    data = scene.server.data
    data.add(LogPosition(data.log_top.epoch, data.log_top.n + 1), kind, body=body)
    scene.server._wake()


def unknown_kind(scene: Scene) -> None:
    put(scene, "of-a-newer-version", msgpack.packb({}))


def damaged_body(scene: Scene) -> None:
    put(scene, "delta", b"\xc1\x00")


def body_that_is_no_map(scene: Scene) -> None:
    put(scene, "delta", msgpack.packb([1, 2]))


def delta_of_a_wrong_type(scene: Scene) -> None:
    put(scene, "delta", msgpack.packb({"roles": "all of them"}))


def hole(scene: Scene) -> None:
    data = scene.server.data
    data.add(LogPosition(data.log_top.epoch, data.log_top.n + 3), "delta", body=msgpack.packb({}))
    scene.server._wake()


def trimmed_away(scene: Scene) -> None:
    unknown_kind(scene)
    scene.server.data.log.clear()


def new_incarnation(scene: Scene) -> None:
    scene.server.change_replid()


def restarted_empty(scene: Scene) -> None:
    scene.server.restart()


BREAKS = [
    unknown_kind,
    damaged_body,
    body_that_is_no_map,
    delta_of_a_wrong_type,
    hole,
    trimmed_away,
    new_incarnation,
    restarted_empty,
]


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_log_is_left_for_the_document_and_followed_on(broken: Callable[[Scene], None]) -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await following(scene)
        before = standby.handoffs.loads
        broken(scene)
        await scene.until(lambda: standby.handoffs.loads > before, limit_s=2.0)
        await scene.clock.sleep(1.0)
        # One for the break, and those that a reinstated owner announces itself.
        assert standby.handoffs.loads - before <= 3, "the same break is read again and again"
        # Followed on: what the owner says afterwards arrives, by the log alone.
        await scene.until(lambda: owner.owns)
        await owner.parts.publisher.snapshot()
        owner.fleet.streaks = {"e0": {"timeout": 2}}
        await owner.parts.publisher.publish_changes()
        await scene.until(lambda: standby.parts.mirror.document.streaks == owner.fleet.streaks, limit_s=2.0)  # type: ignore[union-attr]
        await scene.clock.sleep(1.0)
        age_s = standby.parts.mirror.age_s(scene.clock.now())
        assert age_s is not None and age_s < 1.0

    play(script)


def test_a_takeover_over_a_log_with_unusable_entries_keeps_all_the_others() -> None:
    async def script(scene: Scene) -> None:
        owner, _ = await following(scene)
        owner.kill()
        put(scene, "delta", msgpack.packb({"streaks": {"e0": {"timeout": 1}}}))
        put(scene, "delta", b"\xc1")
        put(scene, "delta", msgpack.packb({"roles": 7}))
        put(scene, "delta", msgpack.packb({"streaks": {"e1": {"timeout": 2}}}))
        third = scene.router("r2")
        third.start()
        await scene.until(lambda: any(router.owns for router in scene.routers[1:]), limit_s=10.0)
        (heir,) = [router for router in scene.routers[1:] if router.owns]
        plan = heir.parts.takeover.plan
        assert plan is not None and plan.state is not None
        assert plan.state.document.streaks == {"e1": {"timeout": 2}}

    play(script)


def test_a_restarted_server_that_kept_the_document_does_not_make_its_age_unknown() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await following(scene)
        owner.kill()
        scene.server.restart(scene.server.data)
        await scene.clock.sleep(2.0)
        age_s = standby.parts.mirror.document_age_s(scene.clock.now())
        assert age_s is not None and 2.0 <= age_s < 4.0

    play(script)
