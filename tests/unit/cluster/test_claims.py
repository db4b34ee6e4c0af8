"""Claims with whole memberships: who yields, who does not, and how long it rests after that."""

from __future__ import annotations

from collections.abc import Callable

from narwhal.policy.claims import TRUCE_S
from tests.unit.cluster.cluster_rig import DeadFeed, Router, Scene, play

SICK = "monitoring degraded: handoff OSError"


async def pair(scene: Scene, **changes: object) -> tuple[Router, Router]:
    owner, standby = await scene.owner("a"), scene.router("b", **changes)
    standby.start()
    await scene.clock.sleep(5.0)
    return owner, standby


def sicken(router: Router, reason: str = SICK) -> None:
    router.parts.court.degraded = lambda: reason


async def stays(scene: Scene, holds: Callable[[], bool], seconds: float) -> bool:
    until = scene.loop.time() + seconds
    while scene.loop.time() < until:
        if not holds():
            return False
        await scene.clock.sleep(0.05)
    return True


def test_a_degraded_owner_yields_to_the_standby_that_claims() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        sicken(owner)
        await scene.until(lambda: standby.owns, limit_s=5.0)
        assert "yield_by_claim" in owner.book.kinds()
        released = [fields for kind, fields in standby.book.events if kind == "claim"]
        assert [fields["reason"] for fields in released] == ["degraded"]
        assert scene.server.data.lease["owner"] == "b"

    play(script)


def test_a_healthy_owner_counts_a_claim_and_goes_on() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        epoch = owner.parts.gate.epoch
        standby.parts.member._crew.claimant._suspicion._limit = 0  # suspects everyone
        assert await stays(scene, lambda: owner.owns, 30.0)
        assert owner.parts.court.ignored > 3
        told = [fields for kind, fields in owner.book.events if kind == "claim_ignored"]
        assert told == [{"router_id": "b", "epoch": epoch, "reason": "this owner is not degraded"}]

    play(script)


def test_an_owner_that_recovers_has_the_claim_withdrawn() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        owner.parts.court.judge = lambda claims: ""  # type: ignore[method-assign]
        sicken(owner)
        await scene.until(lambda: "b" in scene.server.data.claims, limit_s=5.0)
        sicken(owner, "")
        await scene.until(lambda: scene.server.data.claims == {}, limit_s=5.0)
        assert "claim_withdrawn" in standby.book.kinds()

    play(script)


def test_a_claim_without_an_answer_may_have_been_put_and_is_withdrawn() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        owner.parts.court.judge = lambda claims: ""  # type: ignore[method-assign]
        standby.registry.mute = True
        sicken(owner)
        await scene.until(lambda: "b" in scene.server.data.claims, limit_s=5.0)
        sicken(owner, "")
        standby.registry.mute = False
        await scene.until(lambda: scene.server.data.claims == {}, limit_s=5.0)

    play(script)


def test_a_withdrawal_without_an_answer_is_repeated() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        owner.parts.court.judge = lambda claims: ""  # type: ignore[method-assign]
        sicken(owner)
        await scene.until(lambda: "b" in scene.server.data.claims, limit_s=5.0)
        standby.registry.lost = True
        sicken(owner, "")
        await scene.clock.sleep(2.0)
        assert "b" in scene.server.data.claims
        standby.registry.lost = False
        await scene.until(lambda: scene.server.data.claims == {}, limit_s=5.0)
        assert standby.book.kinds().count("claim_withdrawn") == 1

    play(script)


def test_a_claim_is_told_once_it_is_known_to_be_put() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        owner.parts.court.judge = lambda claims: ""  # type: ignore[method-assign]
        standby.registry.mute = True
        sicken(owner)
        await scene.clock.sleep(5.0)
        assert "claim" not in standby.book.kinds()
        standby.registry.mute = False
        await scene.clock.sleep(10.0)
        assert standby.book.kinds().count("claim") == 1

    play(script)


def test_a_standby_whose_engines_do_not_answer_puts_no_claim() -> None:
    async def script(scene: Scene) -> None:
        async def broken() -> bool:
            return False

        owner, _ = await pair(scene, probe=broken)
        sicken(owner)
        assert await stays(scene, lambda: owner.owns and scene.server.data.claims == {}, 20.0)

    play(script)


def test_after_a_yield_by_claim_neither_side_claims_or_yields_by_claim_for_a_minute() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        sicken(owner)
        sicken(standby)  # a cause that both share
        await scene.until(lambda: standby.owns, limit_s=5.0)
        moved = scene.loop.time()
        assert await stays(scene, lambda: standby.owns and scene.server.data.claims == {}, TRUCE_S - 5.0)
        await scene.until(lambda: owner.owns, limit_s=15.0)
        assert scene.loop.time() - moved >= TRUCE_S - 1.0
        moved = scene.loop.time()
        assert await stays(scene, lambda: owner.owns, 2 * TRUCE_S - 5.0), "the second truce is longer"

    play(script)


def test_a_third_router_keeps_the_truce_too() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        third = scene.router("c")
        third.start()
        await scene.clock.sleep(5.0)
        for router in (owner, standby, third):
            sicken(router)
        await scene.until(lambda: standby.owns or third.owns, limit_s=5.0)
        successor = standby if standby.owns else third
        assert await stays(scene, lambda: successor.owns, TRUCE_S - 5.0)

    play(script)


def test_a_third_router_that_reads_no_log_keeps_the_truce_too() -> None:
    """Its feed is silent, and the successor's first snapshot trims the release: the lease tells it."""

    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        third = scene.router("c", feed=DeadFeed(scene.server))
        third.start()
        await scene.clock.sleep(5.0)
        sicken(owner)
        await scene.until(lambda: standby.owns, limit_s=5.0)
        await scene.clock.sleep(1.0)
        assert third.parts.court.resting(scene.clock.now())
        assert not third.parts.court.resting(scene.clock.now() + TRUCE_S)

    play(script)


def test_a_router_that_starts_after_a_yield_by_claim_rests_for_what_is_left() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        sicken(owner)
        await scene.until(lambda: standby.owns, limit_s=5.0)
        moved = scene.clock.now()
        await scene.clock.sleep(20.0)
        late = scene.router("c", feed=DeadFeed(scene.server))
        late.start()
        await scene.clock.sleep(3.0)
        assert late.parts.court.resting(moved + TRUCE_S - 2.0)
        assert not late.parts.court.resting(moved + TRUCE_S + 2.0)

    play(script)


def test_a_yield_by_claim_that_is_heard_of_in_several_ways_is_one() -> None:
    """Log, released record and successor's record: a second yield would double the truce."""

    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        third = scene.router("c")
        third.start()
        await scene.clock.sleep(5.0)
        sicken(owner)
        await scene.until(lambda: standby.owns or third.owns, limit_s=5.0)
        moved = scene.clock.now()
        await scene.clock.sleep(5.0)
        for router in (owner, standby, third):
            assert router.parts.court.resting(moved + TRUCE_S - 1.0)
            assert not router.parts.court.resting(moved + TRUCE_S + 1.0)

    play(script)


def test_a_lease_that_was_given_back_for_another_reason_begins_no_truce() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        await owner.parts.member.give_back("yield")
        await scene.until(lambda: standby.owns, limit_s=5.0)
        await scene.clock.sleep(1.0)
        assert not standby.parts.court.resting(scene.clock.now())
        assert not owner.parts.court.resting(scene.clock.now())

    play(script)


def test_an_owner_that_no_standby_polls_yields_to_a_claim() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        scene.around.ends.pop("http://a")  # its listener is out of reach, its lease is renewed
        assert await stays(scene, lambda: owner.owns, 9.0), "not before 2 T"
        await scene.until(lambda: standby.owns, limit_s=6.0)
        (told,) = [fields for kind, fields in owner.book.events if kind == "yield_by_claim"]
        assert told["reason"] == "unheard"

    play(script)


def test_a_dead_standbys_claim_is_not_followed() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        epoch = owner.parts.gate.epoch
        standby.kill()
        await scene.clock.sleep(8.0)
        sicken(owner)
        scene.server.data.claims["b"] = f'{{"epoch": {epoch}, "reason": "r"}}'
        assert await stays(scene, lambda: owner.owns, 10.0)

    play(script)
