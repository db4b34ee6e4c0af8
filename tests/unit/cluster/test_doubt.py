"""A request at a standby: it asks whether the owner is there, and waits for a successor where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from narwhal.cluster.doubt import LOOK_S, Doubt
from narwhal.cluster.gate import HANDOVER_S, LeasedGate
from narwhal.model.control import OwnerRef, RouterState
from narwhal.model.handover import PeerReady
from narwhal.model.leadership import LeaseSight
from narwhal.peers.memory import MemoryPeers, Neighbourhood, PeerEnd
from tests.unit.cluster.test_gate import HandClock

R = TypeVar("R")
OWNER = OwnerRef("r1", "http://r1")
EPOCH = 7


async def a_few_turns() -> None:
    """What can go on without time, has."""
    for _ in range(5):
        await asyncio.sleep(0)


class Link:
    """Counts the questions; `gate` holds them up while it is there."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate: asyncio.Event | None = None

    async def call(self, url: str, operation: Callable[[], Awaitable[R]], *, timeout_s: float) -> R | None:
        self.asked += 1
        assert timeout_s == LOOK_S
        if self.gate is not None:
            await self.gate.wait()
        return await operation()


class Scene:
    """A standby r0 of an owner r1 that may be gone."""

    def __init__(self) -> None:
        self.clock, self.link, self.around = HandClock(), Link(), Neighbourhood()
        self.gate = LeasedGate(self.clock, "r0")
        peers = MemoryPeers("r0", self.around, link=self.link)
        self.gate.doubt = Doubt(peers, self.clock, lasts_s=HANDOVER_S)
        self.gate.sight = LeaseSight(
            RouterState.STANDBY, "held", epoch=EPOCH, owner=OWNER, store_reachable=True
        )

    def owner_answers(self) -> None:
        async def pledge(question: object) -> None:
            raise AssertionError("nobody asks")

        self.around.ends[OWNER.url] = PeerEnd(lambda who: PeerReady(True, EPOCH, ""), pledge)  # type: ignore[arg-type]

    def owner_is_gone(self) -> None:
        self.around.ends.clear()

    async def waits(self) -> bool:
        """A request comes: whether it is held."""
        waiting = asyncio.ensure_future(self.gate.decided(30.0))
        await a_few_turns()
        held = not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return held


def test_a_request_waits_for_a_successor_of_an_owner_that_is_not_there() -> None:
    async def story() -> None:
        scene = Scene()
        waiting = asyncio.create_task(scene.gate.decided(30.0))
        await a_few_turns()
        assert not waiting.done()
        scene.gate.sight = replace(scene.gate.sight, record="released", released_at=0.0)
        scene.gate.changed()
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.gate.grant("t", EPOCH + 1, valid_until=4.0)
        scene.gate.sight = replace(
            scene.gate.sight, state=RouterState.RESTORING, record="held", epoch=EPOCH + 1
        )
        scene.gate.open("t")
        await asyncio.wait_for(waiting, 5)
        assert scene.gate.may_admit(0.0)

    asyncio.run(story())


def test_or_until_another_has_taken_its_place() -> None:
    async def story() -> None:
        scene = Scene()
        waiting = asyncio.create_task(scene.gate.decided(30.0))
        await a_few_turns()
        assert not waiting.done()
        other = OwnerRef("r2", "http://r2")
        scene.gate.sight = replace(scene.gate.sight, epoch=EPOCH + 1, owner=other)
        scene.gate.changed()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(story())


def test_an_owner_that_answers_holds_up_nobody_and_is_asked_once_for_many() -> None:
    async def story() -> None:
        scene = Scene()
        scene.owner_answers()
        scene.link.gate = asyncio.Event()
        many = [asyncio.create_task(scene.gate.decided(30.0)) for _ in range(50)]
        await asyncio.sleep(0)
        scene.link.gate.set()
        await asyncio.wait_for(asyncio.gather(*many), 5)
        assert scene.link.asked == 1
        scene.clock.at += 0.05
        assert not await scene.waits()
        assert scene.link.asked == 2

    asyncio.run(story())


def test_nobody_is_held_up_for_longer_than_a_handover_lasts_once_an_epoch() -> None:
    async def story() -> None:
        scene = Scene()
        assert await scene.waits()
        scene.clock.at = 1.9
        assert await scene.waits()
        scene.clock.at = 2.0
        assert not await scene.waits()
        asked = scene.link.asked
        scene.clock.at = 2.5
        assert not await scene.waits()
        assert scene.link.asked == asked, "nor asks each of them for the whole of a long outage"
        scene.gate.sight = replace(scene.gate.sight, epoch=EPOCH + 1)
        assert await scene.waits()

    asyncio.run(story())


def test_an_owner_that_was_away_for_a_moment_ends_the_doubt() -> None:
    async def story() -> None:
        scene = Scene()
        assert await scene.waits()
        scene.owner_answers()
        scene.clock.at = 0.1
        assert not await scene.waits()
        scene.owner_is_gone()
        scene.clock.at = 10.0
        assert await scene.waits()

    asyncio.run(story())


@pytest.mark.parametrize(
    "change",
    [
        {"record": "vacant", "owner": None},
        {"owner": OwnerRef("r0", "http://r0")},
        {"state": RouterState.FENCED},
        {"state": RouterState.STARTING, "record": "none", "owner": None},
    ],
)
def test_only_who_stands_by_another_asks(change: dict[str, object]) -> None:
    async def story() -> None:
        scene = Scene()
        scene.gate.sight = replace(scene.gate.sight, **change)  # type: ignore[arg-type]
        assert not await scene.waits()
        assert scene.link.asked == 0

    asyncio.run(story())


def test_nor_does_one_that_shuts_down_or_has_nobody_to_ask_through() -> None:
    async def story() -> None:
        scene = Scene()
        scene.gate.shutting_down = True
        assert not await scene.waits()
        scene = Scene()
        scene.gate.doubt = Doubt(None, scene.clock, lasts_s=HANDOVER_S)
        assert not await scene.waits()
        assert scene.link.asked == 0

    asyncio.run(story())
