"""An order to hand over: what is refused before anything closes, and what the new owner finds."""

from __future__ import annotations

import pytest

from narwhal.model.control import RouterRole
from narwhal.model.handover import YieldAnswer, YieldOutcome
from tests.unit.cluster.cluster_rig import DeadFeed, Router, Scene, play

REFUSED, NOT_OWNER = YieldOutcome.REFUSED, YieldOutcome.NOT_OWNER


async def group(scene: Scene, *others: str) -> list[Router]:
    """An owner `a` and its standbys, all known to each other."""
    owner = await scene.owner("a")
    standbys = [scene.router(name) for name in others]
    for standby in standbys:
        standby.start()
    await scene.clock.sleep(3.0)
    return [owner, *standbys]


def test_a_yield_hands_over_to_the_named_one_though_another_ranks_first() -> None:
    async def script(scene: Scene) -> None:
        owner, first, named = await group(scene, "b", "c")
        assert await owner.parts.yielding.order("c") == YieldAnswer(YieldOutcome.DONE)
        assert named.owns
        assert not first.owns
        assert owner.parts.view.status(scene.clock.now()).role is RouterRole.STANDBY

    play(script)


def test_a_yield_to_anybody_hands_over() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await group(scene, "b")
        assert await owner.parts.yielding.order(None) == YieldAnswer(YieldOutcome.DONE)
        assert standby.owns

    play(script)


def test_who_yielded_stands_by_and_owns_again_under_a_new_token() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await group(scene, "b")
        before = owner.parts.gate.holder
        await owner.parts.yielding.order(None)
        await scene.until(lambda: owner.parts.roster.ready_to_take)
        await scene.clock.sleep(2.5)
        assert await standby.parts.yielding.order("a") == YieldAnswer(YieldOutcome.DONE)
        assert owner.owns
        assert owner.parts.gate.holder not in ("", before)

    play(script)


@pytest.mark.parametrize(
    ("to", "error"),
    [
        ("x", "no router x is known in this cluster"),
        ("", 'no router "" is known in this cluster'),
        ("b\n\x1b[2J", r"no router b\n\x1b[2J is known in this cluster"),
        ("a", "router a is the owner itself"),
    ],
)
def test_a_yield_to_nobody_in_particular_is_refused_and_closes_nothing(to: str, error: str) -> None:
    async def script(scene: Scene) -> None:
        owner, _ = await group(scene, "b")
        assert await owner.parts.yielding.order(to) == YieldAnswer(REFUSED, error)
        assert owner.owns

    play(script)


def test_a_lone_owner_keeps_the_lease() -> None:
    async def script(scene: Scene) -> None:
        (owner,) = await group(scene)
        assert await owner.parts.yielding.order(None) == YieldAnswer(
            REFUSED, "no standby is ready to take over"
        )
        assert owner.owns

    play(script)


def test_a_standby_that_died_is_refused_before_its_entry_ends() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await group(scene, "b")
        standby.kill()
        await scene.clock.sleep(7.0)
        told = await owner.parts.yielding.order("b")
        assert told == YieldAnswer(REFUSED, "router b has not been heard of for over 6 s")
        assert (await owner.parts.yielding.order(None)).outcome is REFUSED
        assert owner.owns

    play(script)


def test_a_standby_without_a_mirror_is_refused() -> None:
    async def script(scene: Scene) -> None:
        owner, blind = await scene.owner("a"), scene.router("b", feed=DeadFeed(scene.server))
        blind.start()
        await scene.clock.sleep(3.0)
        told = await owner.parts.yielding.order("b")
        assert told == YieldAnswer(REFUSED, "router b is not ready to take over")
        assert owner.owns

    play(script)


def test_a_standby_does_not_yield_and_a_silent_store_lets_nobody_yield() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await group(scene, "b")
        told = await standby.parts.yielding.order(None)
        assert told == YieldAnswer(NOT_OWNER, "this router does not own the fleet: standby")
        scene.server.down = True
        told = await owner.parts.yielding.order("b")
        assert told == YieldAnswer(NOT_OWNER, "the store does not answer: the lease stays here")
        assert owner.owns

    play(script)


def test_whoever_gives_the_fleet_away_is_told_when_it_is_gone() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        ended: list[bool] = []
        owner.parts.member.ended = lambda: ended.append(owner.owns)
        assert await owner.parts.member.give_back("yield")
        assert ended == [False]

    play(script)
