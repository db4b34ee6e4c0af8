"""Drift between routers over one in-memory server: told by the standby, and what it may still do."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.errors import SavedStateError, StoreUnreachable
from narwhal.model.handoff import LogPosition
from narwhal.model.store_call import FeedBatch
from narwhal.store.memory import MemoryFeed
from tests.unit.cluster.cluster_rig import ENGINES, Router, Scene, play


class StoppingFeed(MemoryFeed):
    """A feed connection that answers until it is stopped."""

    stopped = False

    async def read(self, after: LogPosition, *, block_s: float) -> FeedBatch:
        if self.stopped:
            raise StoreUnreachable("no answer")
        return await super().read(after, block_s=block_s)


async def pair(scene: Scene, **changes: Any) -> tuple[Router, Router]:
    """An owner, and a standby with these changes that knows it."""
    owner = await scene.owner("r0", config_digest="a" * 64)
    standby = scene.router("r1", **{"config_digest": "a" * 64, **changes})
    standby.start()
    roster = standby.parts.roster
    await scene.until(lambda: len(roster.routers) == 2 and standby.parts.mirror.read_at is not None)
    return owner, standby


def drift(scene: Scene, router: Router) -> tuple[str, ...]:
    return router.parts.view.status(scene.clock.now()).drift


def test_equal_routers_tell_no_drift() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        assert drift(scene, owner) == drift(scene, standby) == ()

    play(script)


def test_another_configuration_is_told_everywhere_and_takes_over_all_the_same() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene, config_digest="b" * 64)
        (sentence,) = drift(scene, standby)
        assert "the configuration differs" in sentence
        assert standby.parts.view.status(scene.clock.now()).ready_to_take
        await scene.until(lambda: any(one.drift == (sentence,) for one in owner.parts.roster.routers))
        owner.kill()
        await scene.until(lambda: standby.owns, limit_s=6.0)
        assert drift(scene, standby) == ()

    play(script)


@pytest.mark.parametrize(("contract", "ready"), [("", True), ("c" * 64, False)])
def test_another_engine_set_forbids_with_a_contract_only(contract: str, ready: bool) -> None:
    async def script(scene: Scene) -> None:
        _, standby = await pair(scene, engines=ENGINES[:1], contract_digest=contract)
        assert any("only there: e1" in sentence for sentence in drift(scene, standby))
        assert standby.parts.view.status(scene.clock.now()).ready_to_take is ready

    play(script)


def test_another_schema_version_forbids() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        standby = scene.router("r1")
        standby.start()
        await scene.until(lambda: standby.parts.view.status(scene.clock.now()).ready_to_take)
        scene.server.data.handoff["schema_version"] = "2"
        scene.server.change_replid()
        await scene.until(lambda: not standby.parts.view.status(scene.clock.now()).ready_to_take)
        assert any("the owner writes 2" in sentence for sentence in drift(scene, standby))
        await owner.parts.publisher.snapshot()
        await scene.until(lambda: standby.parts.view.status(scene.clock.now()).ready_to_take)

    play(script)


def test_an_old_mirror_is_told_and_never_forbids_to_acquire() -> None:
    """A feed that fell silent: the lease is taken all the same."""

    async def script(scene: Scene) -> None:
        feed = StoppingFeed(scene.server)
        owner, standby = await pair(scene, max_handoff_age_s=3.0, feed=feed)
        feed.stopped = True
        await scene.clock.sleep(6.0)
        assert any("the mirror is" in sentence for sentence in drift(scene, standby))
        assert standby.parts.view.status(scene.clock.now()).ready_to_take
        owner.kill()
        await scene.until(lambda: standby.owns, limit_s=8.0)

    play(script)


# --- another model is another fleet -----------------------------------------------------------------


def test_a_router_of_another_model_does_not_start_beside_a_living_owner() -> None:
    async def script(scene: Scene) -> None:
        await scene.owner("r0")
        await scene.clock.sleep(3.0)
        stranger = scene.router("r1", model="other")
        with pytest.raises(SavedStateError) as refused:
            await stranger.parts.member.run()
        assert str(refused.value) == (
            'cluster c serves another fleet: its owner serves the model "tiny", '
            'this fleet file is for "other": pass --cluster'
        )

    play(script)


def test_a_fleet_changes_its_model_when_its_last_router_has_ended() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        await scene.clock.sleep(3.0)
        await owner.parts.member.shut_down()
        owner.kill()
        successor = scene.router("r1", model="other")
        successor.start()
        await scene.until(lambda: successor.owns, limit_s=3.0)
        beside = scene.router("r2", model="other")
        beside.start()
        await scene.clock.sleep(3.0)
        assert drift(scene, beside) == ()
        successor.kill()
        await scene.until(lambda: beside.owns, limit_s=8.0)

    play(script)


def test_a_standby_of_another_model_than_an_owner_that_came_later_never_takes_over() -> None:
    """Nobody owned when it started, so nothing told it."""

    async def script(scene: Scene) -> None:
        stranger = scene.router("r1", model="other", prefer_standby=True)
        stranger.start()
        owner = await scene.owner("r0")
        await scene.clock.sleep(5.0)
        sentence = 'it is another fleet\'s: this router is for the model "other", the owner serves "tiny"'
        assert drift(scene, stranger) == (sentence,)
        assert (
            await owner.parts.yielding.order("r1")
        ).error == f"router r1 is not ready to take over: {sentence}"
        heir = scene.router("r2")
        heir.start()
        await scene.clock.sleep(5.0)
        owner.kill()
        await scene.until(lambda: heir.owns, limit_s=8.0)
        heir.kill()
        await scene.clock.sleep(30.0)
        assert not stranger.owns
        last = scene.router("r3")
        last.start()
        await scene.until(lambda: last.owns, limit_s=10.0)

    play(script)
