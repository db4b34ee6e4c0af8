"""Fail-safe mode with whole memberships: the store is down, the voters hear each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from narwhal.cluster.failsafe import AddressBook, Asker, NoPeers, PledgeRounds
from narwhal.errors import StoreUnreachable
from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion
from narwhal.model.lease import holder_of
from narwhal.model.store_call import RouterEntry
from narwhal.policy.intents import AskPledges, Pledged
from narwhal.policy.unlikeness import voters_digest
from narwhal.store.memory import DirectLink
from tests.unit.cluster.cluster_rig import Router, Scene, play

R = TypeVar("R")
VOTERS = ("a", "b", "c")


class CutLink(DirectLink):
    """A way to the store that can be cut."""

    __slots__ = ("cut",)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.server)
        self.cut = False

    async def call(self, operation: Callable[[], R], *, timeout_s: float) -> R:
        if self.cut:
            raise StoreUnreachable("cut")
        return await super().call(operation, timeout_s=timeout_s)


async def group(scene: Scene, voters: tuple[str, ...] = VOTERS, **changes: object) -> list[Router]:
    """An owner and two standbys that know each other."""
    owner = await scene.owner("a", failsafe=voters, **changes)
    others = [scene.router(name, failsafe=voters, **changes) for name in ("b", "c")]
    for other in others:
        other.start()
    await scene.clock.sleep(5.0)
    return [owner, *others]


async def owned_throughout(scene: Scene, owner: Router, seconds: float) -> bool:
    until = scene.loop.time() + seconds
    while scene.loop.time() < until:
        if not owner.owns:
            return False
        await scene.clock.sleep(0.02)
    return True


def test_with_all_pledges_the_owner_serves_through_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        owner, *others = await group(scene)
        before = owner.parts.gate.epoch
        scene.server.down = True
        assert await owned_throughout(scene, owner, 60.0)
        scene.server.down = False
        assert await owned_throughout(scene, owner, 10.0)
        assert owner.parts.gate.epoch == before
        assert not any(other.owns for other in others)

    with caplog.at_level(logging.WARNING, "narwhal.cluster"):
        play(script)
    told = [line for line in caplog.messages if line.startswith("fail-safe")]
    assert told[-1] == "fail-safe: goes on by the pledges of b, c"
    assert len(told) <= 2, "one line for each change"


def test_a_frozen_store_that_comes_back_empty_changes_nothing() -> None:
    async def script(scene: Scene) -> None:
        owner, *_ = await group(scene)
        scene.server.frozen = True
        assert await owned_throughout(scene, owner, 20.0)
        scene.server.restart()
        assert await owned_throughout(scene, owner, 10.0)

    play(script)


def test_without_fail_safe_the_owner_ends_at_its_deadline() -> None:
    async def script(scene: Scene) -> None:
        owner, *_ = await group(scene, ())
        scene.server.down = True
        assert not await owned_throughout(scene, owner, 5.0)

    play(script)


def test_one_voter_that_does_not_answer_ends_it() -> None:
    async def script(scene: Scene) -> None:
        owner, _, other = await group(scene)
        other.kill()
        scene.server.down = True
        assert not await owned_throughout(scene, owner, 5.0)

    play(script)


def test_a_voter_with_another_control_key_ends_it() -> None:
    async def script(scene: Scene) -> None:
        owner, *_ = await group(scene, key="wrong")
        scene.server.down = True
        assert not await owned_throughout(scene, owner, 5.0)

    play(script)


def test_a_voter_that_was_never_seen_ends_it() -> None:
    async def script(scene: Scene) -> None:
        owner, *_ = await group(scene, ("a", "b", "c", "d"))
        scene.server.down = True
        assert not await owned_throughout(scene, owner, 5.0)

    play(script)


def test_an_owner_cut_off_from_a_store_that_others_reach_ends_and_another_owns_later() -> None:
    async def script(scene: Scene) -> None:
        link = CutLink(scene)
        owner = await scene.owner("a", failsafe=VOTERS, link=link)
        others = [scene.router(name, failsafe=VOTERS) for name in ("b", "c")]
        for other in others:
            other.start()
        await scene.clock.sleep(5.0)
        link.cut = True
        await scene.until(lambda: not owner.owns, limit_s=4.1)
        await scene.until(lambda: any(other.owns for other in others), limit_s=4.0)

    play(script)


def test_a_router_that_is_no_voter_says_so_never_owns_and_is_never_ready_to_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("a", failsafe=("a", "b"))
        stranger = scene.router("c", failsafe=("a", "b"))
        stranger.start()
        await scene.clock.sleep(3.0)
        assert not stranger.parts.roster.ready_to_take
        owner.kill()
        await scene.clock.sleep(30.0)
        assert not stranger.owns

    play(script)
    assert "router c is not among the voters of --failsafe: it never owns" in caplog.messages


@pytest.mark.parametrize("list_of_c", [(), ("a", "c"), ("a", "b", "c")], ids=["off", "another", "longer"])
def test_a_router_that_was_told_other_voters_ends_it(list_of_c: tuple[str, ...]) -> None:
    """It is asked by nobody, and back at the store it takes after T the lease of an owner that goes on."""

    async def script(scene: Scene) -> None:
        owner = await scene.owner("a", failsafe=("a", "b"))
        for name, voters in (("b", ("a", "b")), ("c", list_of_c)):
            scene.router(name, failsafe=voters).start()
        await scene.clock.sleep(5.0)
        scene.server.down = True
        assert not await owned_throughout(scene, owner, 10.0)
        scene.server.down = False
        await scene.until(lambda: any(router.owns for router in scene.routers))
        assert sum(router.owns for router in scene.routers) == 1

    play(script)


def test_the_order_of_the_voters_is_no_difference_and_a_standby_tells_a_real_one() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("a", failsafe=("a", "b"))
        alike = scene.router("b", failsafe=("b", "a"))
        unlike = scene.router("c")
        for one in (alike, unlike):
            one.start()
        await scene.clock.sleep(5.0)
        now = scene.clock.now()
        assert alike.parts.view.status(now).drift == ()
        (sentence,) = unlike.parts.view.status(now).drift
        assert "voters" in sentence
        unlike.kill()
        await scene.clock.sleep(20.0)
        scene.server.down = True
        assert await owned_throughout(scene, owner, 10.0), "its entry has ended: the others are alike"

    play(script)


# --- one round -----------------------------------------------------------------------------------


class OnePeer(NoPeers):
    """Answers with what it is given, after a while."""

    def __init__(self, answer: PledgeAnswer | None, *, after_s: float = 0.0) -> None:
        self.answer = answer
        self.after_s = after_s
        self.asked: list[tuple[str, PledgeQuestion]] = []

    async def ready(self, url: str, *, timeout_s: float) -> PeerReady | None:
        return None

    async def pledge(self, url: str, question: PledgeQuestion, *, timeout_s: float) -> PledgeAnswer | None:
        self.asked.append((url, question))
        await asyncio.sleep(self.after_s)
        return self.answer


def asked(peer: OnePeer, scene: Scene) -> PledgeRounds:
    book = AddressBook(("a", "b"))
    alike = voters_digest(("a", "b"))
    book.learn([RouterEntry("b", "run", "standby", "http://b", control_url="http://b:9", voters=alike)])
    return PledgeRounds(Asker("a", 5.0, peer, scene.clock, lambda: "nonce"), ("a", "b"), book=book)


@pytest.mark.parametrize(
    ("answer", "after_s", "whole"),
    [
        (PledgeAnswer(True, "", "nonce"), 0.0, True),
        (PledgeAnswer(True, "", "another"), 0.0, False),
        (PledgeAnswer(False, "owns", "nonce"), 0.0, False),
        (None, 0.0, False),
        (PledgeAnswer(True, "", "nonce"), 0.9, False),
    ],
)
def test_a_round_is_whole_only_with_every_answer_in_time(
    answer: PledgeAnswer | None, after_s: float, whole: bool
) -> None:
    async def script(scene: Scene) -> None:
        peer = OnePeer(answer, after_s=after_s)
        told = await asked(peer, scene).ask(AskPledges("token", 7), timeout_s=0.8)
        assert told == (Pledged() if whole else None)
        question = PledgeQuestion("b", holder_of("a", "token"), 7, ttl_s=5.0, nonce="nonce")
        assert peer.asked == [("http://b:9", question)]

    play(script)


def lines_of(answers: Iterable[bool], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log tells of rounds every half second, each pledged or refused as given."""

    async def script(scene: Scene) -> None:
        peer = OnePeer(None)
        rounds = asked(peer, scene)
        for pledged in answers:
            peer.answer = PledgeAnswer(pledged, "" if pledged else "owns", "nonce")
            await rounds.ask(AskPledges("token", 7), timeout_s=0.8)
            await scene.clock.sleep(0.5)

    with caplog.at_level(logging.WARNING, "narwhal.cluster"):
        play(script)
    return [line.split()[1] for line in caplog.messages]


def test_each_change_within_an_outage_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert lines_of([True, True, False, False, True], caplog) == ["goes", "not", "goes"]


def test_answers_that_go_to_and_fro_are_no_flood_and_the_last_state_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A minute of changes twice a second, then the voters refuse for good."""
    told = lines_of([*(at % 2 == 0 for at in range(120)), *[False] * 25], caplog)
    assert len(told) <= 4 + 8
    assert told[:4] == ["goes", "not", "goes", "not"]
    assert told[-1] == "not"


def test_an_address_is_kept_after_its_entry_ended_and_only_voters_have_one() -> None:
    book = AddressBook(("a", "b"))
    book.learn(
        [RouterEntry("b", "run", "standby", "http://b"), RouterEntry("x", "run", "standby", "http://x")]
    )
    book.learn([])
    assert (book.url("b"), book.url("x"), book.url("a")) == ("http://b", "", "")


def test_a_keeper_that_does_not_come_to_it_refuses() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("b", failsafe=VOTERS)
        question = PledgeQuestion("b", "a:00ff", 7, ttl_s=5.0, nonce="n")
        told = await router.parts.keeper.pledge(question)
        assert told == PledgeAnswer(False, "the lease keeper is busy", "n")

    play(script)
