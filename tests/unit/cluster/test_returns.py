"""Every way out of ownership leads back, in the same process: fenced routers stand by and may own again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from narwhal.model.control import RouterState
from tests.unit.cluster.cluster_rig import Router, Scene, play

Harm = Callable[[Scene, Router], Awaitable[None]]


async def lose_the_lease(scene: Scene, router: Router) -> None:
    """Somebody else's record stands in the store all of a sudden, and is given back."""
    lease = scene.server.data.lease
    lease |= {"token": "f" * 32, "owner": "x", "epoch": str(int(lease["epoch"]) + 5), "seq": "0"}
    await scene.clock.sleep(2.0)
    lease["state"] = "released"


async def lose_the_store(scene: Scene, router: Router) -> None:
    scene.server.down = True
    await scene.clock.sleep(10.0)
    scene.server.down = False


async def freeze_the_store(scene: Scene, router: Router) -> None:
    scene.server.frozen = True
    await scene.clock.sleep(10.0)
    scene.server.thaw()


async def empty_the_store_late(scene: Scene, router: Router) -> None:
    scene.server.down = True
    await scene.clock.sleep(10.0)
    scene.server.restart()
    scene.server.down = False


async def stall_the_keeper(scene: Scene, router: Router) -> None:
    scene.loop.pause(router.keeper, scene.loop.time() + 10.0)
    await scene.clock.sleep(10.0)


async def stall_the_main_loop(scene: Scene, router: Router) -> None:
    scene.loop.pause(router.main, scene.loop.time() + 10.0)
    await scene.clock.sleep(10.0)


async def stop_the_process(scene: Scene, router: Router) -> None:
    """SIGSTOP and SIGCONT."""
    for strand in (router.main, router.keeper):
        scene.loop.pause(strand, scene.loop.time() + 10.0)
    await scene.clock.sleep(10.0)


async def fence_by_order(scene: Scene, router: Router) -> None:
    grip = router.parts.gate.grip
    assert grip is not None
    router.parts.keeper.fence(grip.token, "an engine refused the epoch")
    await scene.clock.sleep(0.1)


HARMS: list[Harm] = [
    lose_the_lease,
    lose_the_store,
    freeze_the_store,
    empty_the_store_late,
    stall_the_keeper,
    stall_the_main_loop,
    stop_the_process,
    fence_by_order,
]
EACH = pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)


@EACH
def test_a_lone_router_owns_again_under_a_new_token(harm: Harm) -> None:
    async def script(scene: Scene) -> None:
        router = await scene.owner("a")
        await scene.clock.sleep(2.0)
        grip = router.parts.gate.grip
        await harm(scene, router)
        await scene.until(lambda: router.owns, limit_s=12.0)
        again = router.parts.gate.grip
        assert grip is not None
        assert again is not None
        assert again.token != grip.token
        assert again.epoch > grip.epoch

    play(script)


def stands_by(scene: Scene, router: Router) -> bool:
    return router.parts.view.status(scene.clock.now()).state is RouterState.STANDBY


@EACH
def test_a_pair_is_owned_again_and_the_fenced_router_stands_by_and_can_take_over(harm: Harm) -> None:
    async def script(scene: Scene) -> None:
        first, second = await scene.owner("a"), scene.router("b")
        second.start()
        await scene.clock.sleep(3.0)
        await harm(scene, first)
        await scene.until(lambda: first.owns or second.owns, limit_s=12.0)
        other = second if first.owns else first
        await scene.until(lambda: other.parts.roster.ready_to_take, limit_s=5.0)
        await scene.until(lambda: stands_by(scene, other), limit_s=1.0)
        owner = first if first.owns else second
        owner.kill()
        await scene.until(lambda: other.owns, limit_s=12.0)

    play(script)


def test_a_fenced_owners_last_state_is_its_mirror() -> None:
    async def script(scene: Scene) -> None:
        router = await scene.owner("a")
        await scene.clock.sleep(2.0)
        scene.server.down = True
        await scene.until(lambda: not router.owns, limit_s=6.0)
        await scene.until(lambda: router.parts.mirror.document is not None, limit_s=1.0)
        document = router.parts.mirror.document
        assert document is not None
        assert document.run == router.parts.publisher._state.identity.run
        assert router.parts.mirror.followed

    play(script)
