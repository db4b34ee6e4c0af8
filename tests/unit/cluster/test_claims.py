"""Claims with whole memberships: who yields, who does not, and how long it rests after that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from narwhal.policy.claims import TRUCE_S
from tests.unit.cluster.cluster_rig import DeadFeed, Router, Scene, play

SICK = "monitoring degraded: controller ValueError"
OWN = "monitoring degraded: handoff NotADirectoryError"


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
        assert [fields["reason"] for fields in released] == [SICK]
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


# --- a cause that is the owner's own ---------------------------------------------------------------


async def swapped(scene: Scene) -> tuple[Router, Router]:
    """`a` has yielded by claim to `b` a moment ago, and is well again."""
    first, second = await pair(scene)
    sicken(first)
    await scene.until(lambda: second.owns, limit_s=5.0)
    sicken(first, "")
    return first, second


def test_a_broken_standby_is_not_yielded_to_and_says_why() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        standby.checkpoint.fails_with = OSError(20, "Not a directory", "/somewhere/x.json")
        await scene.clock.sleep(8.0)
        view = standby.parts.view.status(scene.clock.now())
        assert not view.ready_to_take
        assert view.drift == ("its checkpoint cannot be written: Not a directory",)
        answer = await owner.parts.yielding.order(None)
        assert answer.error == "no standby is ready to take over"
        assert owner.owns
        failed = [fields for kind, fields in standby.book.events if kind == "checkpoint_failed"]
        assert failed == [{"error": "Not a directory"}], "told once, not at each write"
        standby.checkpoint.fails_with = None
        await scene.clock.sleep(4.0)
        assert standby.parts.view.status(scene.clock.now()).ready_to_take
        assert "checkpoint_written" in standby.book.kinds()
        assert (await owner.parts.yielding.order(None)).error == ""

    play(script)


def test_a_broken_standby_still_takes_a_lease_that_nobody_else_would() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        standby.checkpoint.fails_with = OSError("disk full")
        await scene.clock.sleep(8.0)
        owner.kill()
        await scene.until(lambda: standby.owns, limit_s=8.0)

    play(script)


def test_a_sound_standby_is_before_a_broken_one() -> None:
    async def script(scene: Scene) -> None:
        owner, broken = await pair(scene)
        broken.checkpoint.fails_with = OSError("disk full")
        sound = scene.router("c")
        sound.start()
        await scene.clock.sleep(8.0)
        await owner.parts.member.give_back("yield")
        await scene.until(lambda: sound.owns, limit_s=2.0)

    play(script)


def test_a_standby_whose_disk_hangs_goes_on_and_is_not_ready() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        stuck = asyncio.Event()

        async def hangs(call: Callable[[], None]) -> None:
            await stuck.wait()
            call()

        publisher = standby.parts.publisher
        publisher._ports = replace(publisher._ports, blocking=hangs)
        await scene.clock.sleep(10.0)
        status = standby.parts.view.status(scene.clock.now())
        assert status.drift == ("its checkpoint cannot be written: the one before has not ended",)
        (told,) = [one for one in owner.parts.roster.routers if one.router_id == "b"]
        assert (told.ready_to_take, told.drift) == (False, status.drift), "it is still heard of"
        stuck.set()
        await scene.clock.sleep(4.0)
        assert standby.parts.view.status(scene.clock.now()).ready_to_take

    play(script)


def test_a_sound_standby_does_not_wait_for_the_truce_when_the_owners_own_disk_is_broken() -> None:
    async def script(scene: Scene) -> None:
        first, second = await swapped(scene)
        await scene.clock.sleep(2.0)
        await second.parts.member.give_back("yield")
        await scene.until(lambda: first.owns, limit_s=5.0)
        sicken(first, OWN)
        broke = scene.clock.now()
        await scene.until(lambda: second.owns, limit_s=5.0)
        assert second.parts.court.resting(broke)

    play(script)


def test_who_yielded_by_claim_waits_for_the_end_of_the_truce_whatever_ails_the_owner() -> None:
    async def script(scene: Scene) -> None:
        first, second = await swapped(scene)
        moved = scene.clock.now()
        sicken(second, OWN)
        assert await stays(scene, lambda: second.owns, TRUCE_S - 5.0)
        await scene.until(lambda: first.owns, limit_s=15.0)
        assert scene.clock.now() - moved >= TRUCE_S - 1.0

    play(script)


def test_a_standby_whose_own_disk_fails_claims_nothing_from_an_owner_like_it() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await pair(scene)
        standby.checkpoint.fails_with = OSError("disk full")
        await scene.clock.sleep(1.5)  # once is enough: the limit of five is for being preferred
        sicken(owner, OWN)
        assert await stays(scene, lambda: owner.owns and scene.server.data.claims == {}, 20.0)

    play(script)
