"""The last changes of ownership as a router remembers them: who, why, and when it happened."""

from __future__ import annotations

from tests.unit.cluster.cluster_rig import Router, Scene, play


def rows(router: Router) -> list[tuple[str, str, str]]:
    changes = router.parts.view.cluster(0.0).changes
    return [(change.kind, change.router_id, change.reason) for change in changes]


def test_a_router_that_starts_later_tells_when_it_happened_and_what_was_before() -> None:
    async def script(scene: Scene) -> None:
        first = await scene.owner("a")
        second = scene.router("b")
        second.start()
        await scene.clock.sleep(3.0)
        given_back = 1_700_000_000.0 + scene.loop.time()
        await first.parts.member.give_back("shutdown")
        first.kill()
        await scene.until(lambda: second.owns)
        await scene.clock.sleep(20.0)
        late = scene.router("c")
        late.start()
        await scene.clock.sleep(2.0)
        told = late.parts.view.cluster(scene.clock.now()).changes
        assert rows(late) == [("released", "a", "shutdown"), ("acquired", "b", "")]
        assert [abs(change.at - given_back) < 1.0 for change in told] == [True, True]
        assert told[0].epoch < told[1].epoch == second.parts.gate.epoch

    play(script)


def test_the_successor_and_a_bystander_tell_the_release_once_and_the_one_who_gave_back_too() -> None:
    async def script(scene: Scene) -> None:
        first, second, third = await scene.owner("a"), scene.router("b"), scene.router("c")
        for router in (second, third):
            router.start()
        await scene.clock.sleep(3.0)
        await first.parts.member.give_back("yield", successor="b")
        await scene.until(lambda: second.owns)
        await scene.clock.sleep(5.0)
        gone = [("acquired", "a", ""), ("released", "a", "yield"), ("acquired", "b", "")]
        assert rows(first) == rows(second) == rows(third) == gone

    play(script)


def test_a_fenced_owner_is_not_told_as_released_as_well() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("a")
        grip = owner.parts.gate.grip
        assert grip is not None
        owner.parts.keeper.fence(grip.token, "an order")
        await scene.clock.sleep(2.0)
        assert rows(owner)[:2] == [("acquired", "a", ""), ("fenced", "a", "an order")]
        assert ("released", "a", "an order") not in rows(owner)

    play(script)


def test_a_router_remembers_the_release_of_its_own_former_process() -> None:
    async def script(scene: Scene) -> None:
        first, second = await scene.owner("a"), scene.router("b")
        second.start()
        await scene.clock.sleep(3.0)
        await first.parts.member.shut_down()
        first.kill()
        await scene.until(lambda: second.owns)
        again = scene.router("a")
        again.start()
        await scene.clock.sleep(3.0)
        assert rows(again) == [("released", "a", "shutdown"), ("acquired", "b", "")]

    play(script)
